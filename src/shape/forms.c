/* How families write calls: what their chat templates show models to write (see also reply/families.c, which reads
 * more than is written here). */
#include <string.h>

#include "shape/shape_impl.h"

#define NAME "\1"
#define ARGS "\2"
#define IS_TEXT "\3"
#define OWN "\6"
#define OBJECT(arguments) "{\"name\": \"" NAME "\", \"" arguments "\": " ARGS "}"
#define HERMES "<tool_call>\n" OBJECT("arguments") "\n</tool_call>"
#define FUNCTION_CALL "<tool_call>\n<function=" NAME ">\n" ARGS "</function>\n</tool_call>"
#define FUNCTION_PARAM .param = "<parameter=" NAME ">\n" ARGS "\n</parameter>\n", .value_end = "</parameter>"
#define PAIR(suffix) .param = "<arg_key" suffix ">" NAME "</arg_key" suffix ">\n<arg_value" suffix ">" ARGS \
                              "</arg_value" suffix ">\n", .value_end = "</arg_value" suffix ">"
#define HY3(suffix) .begin = "<tool_calls" suffix ">\n", .call = "<tool_call" suffix ">" NAME "<tool_sep" suffix ">\n" \
                    ARGS "</tool_call" suffix ">\n", .between = "", .end = "</tool_calls" suffix ">", PAIR(suffix)

#define M3 "]<]minimax[>["

static const struct pf_form forms[] = {
    { "qwen3-coder", .call = FUNCTION_CALL, .between = "\n", FUNCTION_PARAM },
    { "qwen3.5", .call = FUNCTION_CALL, .between = "\n", FUNCTION_PARAM },
    { "nemotron-3", .call = FUNCTION_CALL, .between = "\n", FUNCTION_PARAM },
    { "seed-oss", .call = "<seed:tool_call>\n<function=" NAME ">\n" ARGS "</function>\n</seed:tool_call>",
      .between = "\n", .param = "<parameter=" NAME ">" ARGS "</parameter>\n", .value_end = "</parameter>" },
    { "gpt-oss", .call = "<|channel|>commentary to=functions." NAME " <|constrain|>json<|message|>" ARGS,
      .between = "<|end|><|start|>assistant" },
    { "glm", .call = "<tool_call>" NAME "\n" ARGS "</tool_call>", .between = "\n", PAIR("") },
    { "ling", .call = "<tool_call>" NAME "\n" ARGS "</tool_call>", .between = "\n", PAIR("") },
    { "deepseek-v3", .begin = "<｜tool▁calls▁begin｜>",
      .call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" NAME "\n```json\n" ARGS "\n```<｜tool▁call▁end｜>",
      .between = "\n", .end = "<｜tool▁calls▁end｜>" },
    { "deepseek-v3.1", .begin = "<｜tool▁calls▁begin｜>",
      .call = "<｜tool▁call▁begin｜>" NAME "<｜tool▁sep｜>" ARGS "<｜tool▁call▁end｜>", .between = "",
      .end = "<｜tool▁calls▁end｜>" },
    { "deepseek-dsml", .begin = "<｜DSML｜function_calls>\n",
      .call = "<｜DSML｜invoke name=\"" NAME "\">\n" ARGS "</｜DSML｜invoke>\n", .between = "",
      .end = "</｜DSML｜function_calls>",
      .param = "<｜DSML｜parameter name=\"" NAME "\" string=\"" IS_TEXT "\">" ARGS "</｜DSML｜parameter>\n",
      .value_end = "</｜DSML｜parameter>" },
    { "kimi-k2", .begin = "<|tool_calls_section_begin|>",
      .call = "<|tool_call_begin|>functions." NAME ":\4<|tool_call_argument_begin|>" ARGS "<|tool_call_end|>",
      .between = "", .end = "<|tool_calls_section_end|>" },
    { "minimax-m2", .begin = "<minimax:tool_call>\n", .call = "<invoke name=\"" NAME "\">\n" ARGS "</invoke>\n",
      .between = "", .end = "</minimax:tool_call>", .param = "<parameter name=\"" NAME "\">" ARGS "</parameter>\n",
      .value_end = "</parameter>" },
    { "minimax-m3", .begin = M3 "<tool_call>\n", .call = M3 "<invoke name=\"" NAME "\">" ARGS M3 "</invoke>\n",
      .between = "", .end = M3 "</tool_call>", .param = M3 "<" NAME ">" ARGS M3 "</" NAME ">", .value_end = M3 "</" },
    { "llama-3", .call = OBJECT("parameters") },
    { "llama-4", .call = OBJECT("parameters") },
    { "mistral", .needs = "[ARGS]", .call = "[TOOL_CALLS]" NAME "[ARGS]" ARGS, .between = "" },
    { "mistral", .begin = "[TOOL_CALLS][", .call = OBJECT("arguments"), .between = ", ", .end = "]" },
    { "granite", .needs = "<|tool_call|>", .begin = "<|tool_call|>[", .call = OBJECT("arguments"), .between = ", ",
      .end = "]" },
    { "hunyuan", .needs = "<tool_call:opensource>", HY3(":opensource") },
    { "hunyuan", .begin = "<tool_calls>[", .call = OBJECT("arguments"), .between = ", ", .end = "]</tool_calls>" },
    { "hy3-preview", HY3("") },
    { "gemma-4", .call = "<|tool_call>call:" NAME OWN "<tool_call|>", .between = "" },
    { "lfm2", .begin = "<|tool_call_start|>[", .call = NAME "(" OWN, .between = ", ", .end = "]<|tool_call_end|>" },
    { "solar", .begin = "<|tool_calls|>", .call = "<|tool_call:begin|>\5<|tool_call:name|>" NAME "<|tool_call:args|>"
      ARGS "<|tool_call:end|>", .between = "" },
    { NULL, .call = HERMES, .between = "\n" },
};

const struct pf_form *pf_form_of(const struct pf_family *f, const pf_vocab *v)
{
    const struct pf_form *form = forms;
    for (; form->family; form++)
        if (strcmp(form->family, f->name) == 0 &&
            (!form->needs || pf_shape_mark(v, form->needs, strlen(form->needs)) == strlen(form->needs)))
            break;
    return form;
}
