/* See families.h. Sources: the families' chat templates, and what they were seen to write. */
#define _GNU_SOURCE                  /* memmem */
#include "reply/families.h"

#include <string.h>

#define THINK(open, close) { open, PF_MARK_THINK, PF_MARK_AT_START }, { close, PF_MARK_ANSWER, 0 }
#define DROP(text) { text, PF_MARK_DROP, 0 }
#define BLOCK(text, flags) { text, PF_MARK_BLOCK, flags }
#define HEAD(text, flags) { text, PF_MARK_HEAD, flags }
#define END { NULL, PF_MARK_DROP, 0 }
#define IN PF_MARK_IN_THOUGHT

/* ---- Calls as JSON objects --------------------------------------------------------------------------------------- */

static const struct pf_mark hermes[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", 0), DROP("<|im_end|>"), DROP("<|endoftext|>"), END
};
static const struct pf_mark granite[] = {
    THINK("<think>", "</think>"), BLOCK("<|tool_call|>", 0), BLOCK("<tool_call>", 0), DROP("<response>"),
    DROP("</response>"), DROP("<|end_of_text|>"), END
};
static const struct pf_mark ernie[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", 0), DROP("<response>"), DROP("</response>"), DROP("</s>"), END
};
static const struct pf_mark llama3[] = {
    BLOCK("<|python_tag|>", PF_MARK_OFFERED), DROP("<|eot_id|>"), DROP("<|eom_id|>"), END
};
static const struct pf_mark generic[] = {
    THINK("<think>", "</think>"), { "[THINK]", PF_MARK_THINK, PF_MARK_AT_START }, { "[/THINK]", PF_MARK_ANSWER, 0 },
    BLOCK("<tool_call>", 0), END
};

/* ---- A name, and its arguments as a JSON object ------------------------------------------------------------------ */

static const struct pf_mark deepseek_v3[] = {
    THINK("<think>", "</think>"), BLOCK("<｜tool▁calls▁begin｜>", 0), HEAD("<｜tool▁call▁begin｜>", 0),
    DROP("<｜tool▁calls▁end｜>"), DROP("<｜end▁of▁sentence｜>"), END
};
static const struct pf_mark kimi[] = {
    THINK("<think>", "</think>"), BLOCK("<|tool_calls_section_begin|>", IN), HEAD("<|tool_call_begin|>", IN),
    DROP("<|tool_calls_section_end|>"), DROP("<|im_end|>"), END
};
static const struct pf_mark mistral[] = {
    { "[THINK]", PF_MARK_THINK, 0 }, { "[/THINK]", PF_MARK_ANSWER, PF_MARK_ANYWHERE }, THINK("<think>", "</think>"),
    BLOCK("[TOOL_CALLS]", 0), DROP("</s>"), END
};
static const struct pf_mark solar[] = {
    { "<|think|>", PF_MARK_THINK, 0 }, { "<|end|>", PF_MARK_ANSWER, PF_MARK_ANYWHERE },
    { "<|begin|>assistant", PF_MARK_ANSWER, PF_MARK_ANYWHERE }, { "<|content|>", PF_MARK_ANSWER, PF_MARK_ANYWHERE },
    BLOCK("<|tool_calls|>", IN), HEAD("<|tool_call:begin|>", IN), DROP("<|calls|>"), DROP("<|flush|>"), END
};
static const struct pf_mark harmony[] = {
    { "<|start|>", PF_MARK_HEADER, 0 }, { "<|channel|>", PF_MARK_HEADER, 0 }, { "<|message|>", PF_MARK_HEADER, 0 },
    { "<|end|>", PF_MARK_HEADER, 0 }, { "<|return|>", PF_MARK_HEADER, 0 }, { "<|call|>", PF_MARK_HEADER, 0 },
    DROP("<|constrain|>"), END
};

/* ---- A name, and its arguments between tags ---------------------------------------------------------------------- */

static const struct pf_mark qwen3_coder[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", IN), HEAD("<function=", PF_MARK_OFFERED), DROP("<|im_end|>"),
    DROP("<|endoftext|>"), END
};
static const struct pf_mark qwen35[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", IN), DROP("<|im_end|>"), DROP("<|endoftext|>"), END
};
static const struct pf_mark nemotron[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", IN), BLOCK("<TOOLCALL>", 0), DROP("<|im_end|>"),
    DROP("<SPECIAL_12>"), END
};
static const struct pf_mark seed[] = {
    THINK("<seed:think>", "</seed:think>"), BLOCK("<seed:tool_call>", 0), DROP("<seed:eos>"), END
};
static const struct pf_mark minimax[] = {
    THINK("<think>", "</think>"), BLOCK("<minimax:tool_call>", IN), DROP("[e~["), END
};
#define M3 "]<]minimax[>["              /* a token, in front of every tag */
static const struct pf_mark minimax3[] = {
    THINK("<mm:think>", "</mm:think>"), BLOCK(M3 "<tool_call>", IN), DROP("[e~["), END
};
static const struct pf_mark dsml[] = {
    THINK("<think>", "</think>"), BLOCK("<｜DSML｜\1 \2function_calls>", IN), BLOCK("<｜DSML｜\1 \2tool_calls>", IN),
    BLOCK("<｜DSML｜\1 \2calls>", IN), DROP("<｜end▁of▁sentence｜>"), END
};
static const struct pf_mark glm[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", 0), DROP("<|observation|>"), DROP("<|user|>"),
    DROP("<|endoftext|>"), END
};
static const struct pf_mark ling[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_call>", IN), DROP("<|role_end|>"), END
};
static const struct pf_mark hunyuan[] = {
    THINK("<think>", "</think>"), THINK("<think:opensource>", "</think:opensource>"), BLOCK("<tool_calls>", 0),
    BLOCK("<tool_calls:opensource>", 0), DROP("<answer>"), DROP("</answer>"),
    { "助手：", PF_MARK_DROP, PF_MARK_AT_START }, DROP("<|eos|>"), DROP("<｜hy_eos:opensource｜>"), END
};
static const struct pf_mark hy3_preview[] = {
    THINK("<think>", "</think>"), BLOCK("<tool_calls>", 0), DROP("<｜hy_eos｜>"), END
};

/* ---- Notations of their own -------------------------------------------------------------------------------------- */

static const struct pf_mark llama4[] = {
    BLOCK("<|python_start|>", 0), DROP("<|python_end|>"), DROP("<|eot|>"), DROP("<|eom|>"), END
};
static const struct pf_mark lfm2[] = {
    THINK("<think>", "</think>"), BLOCK("<|tool_call_start|>", 0), DROP("<|im_end|>"), END
};
static const struct pf_mark gemma4[] = {
    { "<|channel>thought", PF_MARK_THINK, 0 }, { "<channel|>", PF_MARK_ANSWER, PF_MARK_ANYWHERE },
    HEAD("<|tool_call>call:", 0), DROP("<|tool_response>"), DROP("<turn|>"), DROP("<eos>"),
    DROP("<|\"|>"), END
};

/* ---- The table --------------------------------------------------------------------------------------------------- */

#define NAME_TO(text) { { PF_FIELD_NAME, text, PF_FIELD_ARGUMENTS, false } }
#define PAIRS(suffix) .key_open = "<arg_key" suffix ">", .key_end = "</arg_key" suffix ">", \
                      .value_open = "<arg_value" suffix ">", .value_end = "</arg_value" suffix ">"
#define NAME_THEN_PAIRS .first = PF_FIELD_NAME, .arguments = PF_ARGUMENTS_TAGS, PAIRS(""), .ends = { "</tool_call>" }, \
                        .fields = { { PF_FIELD_NAME, "<arg_key>", PF_FIELD_ARGUMENTS, true }, \
                                    { PF_FIELD_NAME, "</tool_call>", PF_FIELD_ARGUMENTS, true } }
#define HY3_CALL(suffix) .head = "<tool_call" suffix ">", .first = PF_FIELD_NAME, .arguments = PF_ARGUMENTS_TAGS, \
                         .fields = NAME_TO("<tool_sep" suffix ">"), PAIRS(suffix)
#define FUNCTION_TAGS .head = "<function=", .first = PF_FIELD_NAME, .fields = NAME_TO(">"), \
                      .arguments = PF_ARGUMENTS_TAGS, .key_open = "<parameter=", .key_end = ">", \
                      .value_end = "</parameter>"
#define PYTHON_CALL .first = PF_FIELD_NAME, .arguments = PF_ARGUMENTS_PYTHON, \
                    .fields = { { PF_FIELD_NAME, ".call(", PF_FIELD_ARGUMENTS, false }, \
                                { PF_FIELD_NAME, "(", PF_FIELD_ARGUMENTS, false } }

static const struct pf_family families[] = {
    { "hermes", "qwen qwen2.5 qwen3 qwq smollm3 mimo", hermes, PF_FORM_OBJECTS, .ends = { "</tool_call>" } },
    { "qwen3-coder", "qwen3-coder-next", qwen3_coder, PF_FORM_OBJECTS | PF_FORM_NEWLINES, FUNCTION_TAGS,
      .ends = { "</function>", "</tool_call>" } },
    { "qwen3.5", "qwen3.6 qwen3.8 step step-3.5", qwen35, PF_FORM_OBJECTS | PF_FORM_NEWLINES, FUNCTION_TAGS,
      .ends = { "</function>", "</tool_call>" } },
    { "nemotron-3", "nemotron nano-v2", nemotron, PF_FORM_OBJECTS | PF_FORM_NEWLINES, FUNCTION_TAGS,
      .ends = { "</function>", "</tool_call>", "</TOOLCALL>" } },
    { "seed-oss", "seed", seed, 0, FUNCTION_TAGS, .ends = { "</function>", "</seed:tool_call>" } },
    { "gpt-oss", "harmony", harmony, PF_FORM_HARMONY, .head = NULL },
    { "glm", "glm-4.5 glm-4.6 glm-4.7 glm-5", glm, PF_FORM_NAKED, NAME_THEN_PAIRS },
    { "ling", "ring bailing ling-2 ling-3", ling, PF_FORM_OBJECTS | PF_FORM_NAKED, NAME_THEN_PAIRS },
    { "deepseek-v3", "deepseek-r1", deepseek_v3, 0, .head = "<｜tool▁call▁begin｜>", .first = PF_FIELD_TYPE,
      .fields = { { PF_FIELD_TYPE, "<｜tool▁sep｜>", PF_FIELD_NAME, false },
                  { PF_FIELD_NAME, "\n", PF_FIELD_ARGUMENTS, false } },
      .fences = { "```json", "```" }, .ends = { "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```" } },
    { "deepseek-v3.1", NULL, deepseek_v3, 0, .head = "<｜tool▁call▁begin｜>", .first = PF_FIELD_NAME,
      .fields = NAME_TO("<｜tool▁sep｜>"), .ends = { "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>" } },
    { "deepseek-dsml", "deepseek-v3.2 deepseek-v4 dsml", dsml, PF_FORM_QUOTED, .head = "<｜DSML｜\1 \2invoke name=",
      .first = PF_FIELD_NAME, .fields = NAME_TO(">"), .arguments = PF_ARGUMENTS_TAGS,
      .key_open = "<｜DSML｜\1 \2parameter name=", .key_end = ">", .value_end = "</｜DSML｜\1 \2parameter>",
      .ends = { "</｜DSML｜\1 \2invoke>", "</｜DSML｜\1 \2function_calls>", "</｜DSML｜\1 \2tool_calls>",
                "</｜DSML｜\1 \2calls>" } },
    { "kimi-k2", "kimi", kimi, PF_FORM_ID_NAMES, .head = "<|tool_call_begin|>", .first = PF_FIELD_NAME,
      .fields = NAME_TO("<|tool_call_argument_begin|>"),
      .ends = { "<|tool_call_end|>", "<|tool_calls_section_end|>" } },
    { "minimax-m2", "minimax", minimax, PF_FORM_QUOTED, .head = "<invoke name=", .first = PF_FIELD_NAME,
      .fields = NAME_TO(">"), .arguments = PF_ARGUMENTS_TAGS, .key_open = "<parameter name=", .key_end = ">",
      .value_end = "</parameter>", .ends = { "</invoke>", "</minimax:tool_call>" } },
    { "minimax-m3", NULL, minimax3, PF_FORM_QUOTED | PF_FORM_NESTED, .head = M3 "<invoke name=", .first = PF_FIELD_NAME,
      .fields = NAME_TO(">"), .arguments = PF_ARGUMENTS_TAGS, .key_open = M3 "<", .key_end = ">", .value_end = M3 "</",
      .ends = { M3 "</invoke>", M3 "</tool_call>" } },
    { "llama-3", "llama-3.1 llama", llama3, PF_FORM_OBJECTS | PF_FORM_NAKED | PF_FORM_BARE, PYTHON_CALL },
    { "llama-4", NULL, llama4, PF_FORM_OBJECTS | PF_FORM_PYTHON | PF_FORM_BARE, PYTHON_CALL,
      .ends = { "<|python_end|>" } },
    { "mistral", "magistral devstral", mistral, PF_FORM_OBJECTS | PF_FORM_NAKED, .first = PF_FIELD_NAME,
      .fields = { { PF_FIELD_NAME, "[CALL_ID]", PF_FIELD_ID, false },
                  { PF_FIELD_NAME, "[ARGS]", PF_FIELD_ARGUMENTS, false },
                  { PF_FIELD_NAME, "{", PF_FIELD_ARGUMENTS, true },
                  { PF_FIELD_ID, "[ARGS]", PF_FIELD_ARGUMENTS, false } } },
    { "granite", "granite-3 granite-4", granite, PF_FORM_OBJECTS | PF_FORM_BARE, .ends = { "</tool_call>" } },
    { "ernie-4.5", "ernie", ernie, PF_FORM_OBJECTS, .ends = { "</tool_call>" } },
    { "hunyuan", "a13b hy3", hunyuan, PF_FORM_OBJECTS | PF_FORM_BARE, HY3_CALL(":opensource"),
      .ends = { "</tool_call:opensource>", "</tool_calls:opensource>", "</tool_calls>" } },
    { "hy3-preview", NULL, hy3_preview, 0, HY3_CALL(""), .ends = { "</tool_call>", "</tool_calls>" } },
    { "gemma-4", "gemma", gemma4, 0, .head = "<|tool_call>call:", .first = PF_FIELD_NAME,
      .fields = { { PF_FIELD_NAME, "{", PF_FIELD_ARGUMENTS, true } }, .arguments = PF_ARGUMENTS_GEMMA,
      .ends = { "<tool_call|>" } },
    { "lfm2", "lfm2.5", lfm2, PF_FORM_OBJECTS | PF_FORM_PYTHON, PYTHON_CALL, .ends = { "<|tool_call_end|>" } },
    { "solar", "solar-open", solar, 0, .head = "<|tool_call:begin|>", .first = PF_FIELD_ID,
      .fields = { { PF_FIELD_ID, "<|tool_call:name|>", PF_FIELD_NAME, false },
                  { PF_FIELD_NAME, "<|tool_call:args|>", PF_FIELD_ARGUMENTS, false } },
      .ends = { "<|tool_call:end|>", "<|calls|>" } },
    { "generic", NULL, generic, PF_FORM_OBJECTS | PF_FORM_BARE, .ends = { "</tool_call>" } },
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const struct pf_family *pf_family_at(int i)
{
    return i < N_FAMILIES ? &families[i] : NULL;
}

static bool is_named(const struct pf_family *f, const char *name)
{
    size_t n = strlen(name);
    if (strcmp(name, f->name) == 0)
        return true;
    for (const char *p = f->aliases; p && *p; p += *p == ' ') {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p += len;
    }
    return false;
}

const struct pf_family *pf_family_find(const char *name)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (is_named(&families[i], name))
            return &families[i];
    return NULL;
}

static bool holds(const char *text, const char *s, size_t n)
{
    return text && n && memmem(text, strlen(text), s, n) != NULL;
}

bool pf_family_has(const struct pf_family *f, const char *s, size_t n)
{
    const char *const tags[] = { f->head, f->fences[0], f->fences[1], f->key_open, f->key_end, f->value_open,
                                 f->value_end };
    bool has = false;
    for (const struct pf_mark *m = f->marks; m->text; m++)
        has |= holds(m->text, s, n);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        has |= holds(tags[i], s, n);
    for (size_t i = 0; i < sizeof f->fields / sizeof *f->fields; i++)
        has |= holds(f->fields[i].text, s, n);
    for (size_t i = 0; i < sizeof f->ends / sizeof *f->ends; i++)
        has |= holds(f->ends[i], s, n);
    return has;
}

/* The first row whose texts all stand in the template. */
static const struct { const char *texts[2], *family; } signs[] = {
    { { "<|tool_call:begin|>" }, "solar" },
    { { "<seed:tool_call>" }, "seed-oss" },
    { { "<|channel|>", "<|start|>" }, "gpt-oss" },
    { { "｜DSML｜" }, "deepseek-dsml" },
    { { "<|tool_calls_section_begin|>" }, "kimi-k2" },
    { { M3 }, "minimax-m3" },
    { { "<minimax:tool_call>" }, "minimax-m2" },
    { { "<|tool_call>call:" }, "gemma-4" },
    { { "<|tool_call_start|>" }, "lfm2" },
    { { "<|tool_list_start|>" }, "lfm2" },
    { { "tool▁calls▁begin", "```json" }, "deepseek-v3" },
    { { "tool▁calls▁begin" }, "deepseek-v3.1" },
    { { "[TOOL_CALLS]" }, "mistral" },
    { { "<tool_calls>", "<tool_sep>" }, "hy3-preview" },
    { { "<tool_calls", "<tool_sep" }, "hunyuan" },
    { { "<role>", "<arg_key>" }, "ling" },
    { { "<arg_key>" }, "glm" },
    { { "<function=", "<think>" }, "qwen3.5" },
    { { "<function=" }, "qwen3-coder" },
    { { "<|tool_call|>" }, "granite" },
    { { "<TOOLCALL>" }, "nemotron-3" },
    { { "<tool_calls>" }, "hunyuan" },
    { { "<role>", "<tool_call>" }, "ling" },
    { { "<tool_call>", "<response>" }, "ernie-4.5" },
    { { "<tool_call>" }, "hermes" },
    { { "<|python_start|>" }, "llama-4" },
    { { "<|python_tag|>" }, "llama-3" },
    { { "\"parameters\": ", "ipython" }, "llama-3" },
    { { "[THINK]" }, "mistral" },
};

const struct pf_family *pf_family_of_template(const char *text, size_t n)
{
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        bool all = true;
        for (int k = 0; k < 2 && signs[i].texts[k]; k++)
            all &= memmem(text, n, signs[i].texts[k], strlen(signs[i].texts[k])) != NULL;
        if (all)
            return pf_family_find(signs[i].family);
    }
    return pf_family_find("generic");
}
