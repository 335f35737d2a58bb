/* The text that a person is shown for a model's tokens: reasoning apart from the answer, stop strings, whole
 * characters.
 *
 *     test_reply MODEL        a model of pfmoe-synth: one token a byte, so that every mark comes in pieces
 *
 * Control tokens of harmony are not in that vocabulary; check_reply.py brings one that has them as a second
 * argument. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cli/reply.h"

static pf_model *model;
static struct buf shown[2];
static bool all_whole;
static const char *family = "hermes";

static void show(void *ctx, enum part part, const char *text, size_t n)
{
    (void)ctx;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence(text + i, n - i);
        all_whole &= len > 0;
        i += len ? len : 1;
    }
    buf_add(&shown[part], text, n);
}

/* Feeds text token by token; prompt as in reply_begin. */
static bool feed(const char *prompt, const char *text, size_t len, const struct text_list *stops)
{
    struct reply r = { .m = model, .family = family, .stops = stops, .to_terminal = true, .show = show };
    struct buf prompt_text = { 0 };
    int32_t ids[512];
    size_t n;
    buf_clear(&shown[0]);
    buf_clear(&shown[1]);
    all_whole = true;
    if (pf_tokenize(model, text, len, PF_TOK_PARSE_SPECIAL, ids, sizeof ids / sizeof *ids, &n) < 0)
        return false;
    buf_puts(&prompt_text, prompt ? prompt : "");
    reply_begin(&r, prompt ? &prompt_text : NULL);
    for (size_t i = 0; i < n && !r.stopped; i++)
        if (reply_token(&r, ids[i]) < 0)
            return false;
    reply_end(&r);
    struct buf clean = { 0 };
    buf_add_clean(&clean, buf_text(&r.answer), r.answer.n);
    bool kept = strcmp(buf_text(&clean), buf_text(&shown[PART_ANSWER])) == 0;
    buf_free(&clean);
    reply_free(&r);
    buf_free(&prompt_text);
    return kept;
}

static void expect(const char *prompt, const char *text, const char *reasoning, const char *answer,
                   const struct text_list *stops)
{
    bool ok = feed(prompt, text, strlen(text), stops);
    CHECK(ok && all_whole, "%s", text);
    CHECK(strcmp(buf_text(&shown[PART_REASONING]), reasoning) == 0, "%s: \"%s\"", text,
          buf_text(&shown[PART_REASONING]));
    CHECK(strcmp(buf_text(&shown[PART_ANSWER]), answer) == 0, "%s: \"%s\"", text, buf_text(&shown[PART_ANSWER]));
}

static void test_reasoning(void)
{
    static const struct text_list none;
    expect("", "plain", "", "plain", &none);
    expect("", "<think>why</think>\n\nbecause", "why", "because", &none);
    expect("", "\n<think>\nwhy < not</thin </think>so", "why < not</thin", "so", &none);
    family = "mistral";
    expect("", "[THINK]why[/THINK]so", "why", "so", &none);
    family = "hermes";
    expect("", "<thinly> veiled", "", "<thinly> veiled", &none);
    expect("", "<thin", "", "<thin", &none);
    expect("", "so <think>no</think>", "", "so <think>no</think>", &none);
    expect("<|im_start|>assistant\n<think>\n", "inside</think>out", "inside", "out", &none);
    expect("<think>\n\n</think>\n\n", "out", "", "out", &none);
    expect("", "<think>never ends</thi", "never ends</thi", "", &none);
    expect(NULL, " <think>as it is</think>", "", " <think>as it is</think>", &none);
    expect("", "", "", "", &none);
}

static void test_stops(void)
{
    static const struct text_list stops = { .n = 3, .v = { "STOP", "\xC3\xA9t\xC3\xA9", "OPERA" } };
    expect("", "go STOP here", "", "go ", &stops);
    expect("", "go STO here", "", "go STO here", &stops);
    expect("", "go STOPERA", "", "go ", &stops);
    expect("", "un \xC3\xA9t\xC3\xA9!", "", "un ", &stops);
    expect("", "un \xC3\xA9t\xC3\xA0!", "", "un \xC3\xA9t\xC3\xA0!", &stops);
    expect("", "ends in ST", "", "ends in ST", &stops);
    expect("", "<think>STOP</think>on", "STOP", "on", &stops);
}

static void test_characters(void)
{
    static const struct text_list none;
    static const char fffd[] = "\xEF\xBF\xBD";
    expect("", "\xF0\x9F\xA6\x8A \xE2\x82\xAC", "", "\xF0\x9F\xA6\x8A \xE2\x82\xAC", &none);
    expect("", "a\xC3", "", "a\xEF\xBF\xBD", &none);
    expect("", "a\xC3 b\xFF", "", "a\xEF\xBF\xBD b\xEF\xBF\xBD", &none);
    expect("", "\x1B[31mred\x07", "", "\xEF\xBF\xBD[31mred\xEF\xBF\xBD", &none);
    expect("", "\xC2\x9B" "2J", "", "\xEF\xBF\xBD" "2J", &none);
    expect("", "\xE2\x80\xAE" "dlo", "", "\xEF\xBF\xBD" "dlo", &none);
    CHECK(feed("", "a\0b", 3, &none) && shown[0].n == 5 && memcmp(shown[0].p + 1, fffd, 3) == 0);
}

/* Every character that is one: exactly the controls are taken out, newline and tab stay, and no lone byte passes. */
static void test_clean(void)
{
    static const uint32_t ranges[][2] = { { 0x00, 0x08 }, { 0x0B, 0x1F }, { 0x7F, 0x9F }, { 0x61C, 0x61C },
                                          { 0x200E, 0x200F }, { 0x202A, 0x202E }, { 0x2066, 0x2069 } };
    struct buf text = { 0 }, clean = { 0 };
    for (uint32_t c = 0; c < 0x110000; c++) {
        bool control = false;
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
            control |= c >= ranges[i][0] && c <= ranges[i][1];
        buf_clear(&text);
        buf_clear(&clean);
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = 0; i < n; i++)
            buf_add(&text, (char[]){ (char)(i == 0 ? (n == 1 ? c : (0xF00u >> n) | c >> 6 * (n - 1))
                                                   : 0x80 | (c >> 6 * (n - 1 - i) & 0x3F)) }, 1);
        buf_add_clean(&clean, text.p, text.n);
        bool kept = clean.n == text.n && memcmp(clean.p, text.p, text.n) == 0 && c != 0xFFFD;
        bool surrogate = c >= 0xD800 && c < 0xE000;
        CHECK(kept == !(control || surrogate || c == 0xFFFD), "U+%04X", (unsigned)c);
    }
    for (int byte = 0x80; byte < 0x100; byte++) {
        buf_clear(&clean);
        buf_add_clean(&clean, (char[]){ (char)byte }, 1);
        CHECK(strcmp(clean.p, "\xEF\xBF\xBD") == 0, "%02x", (unsigned)byte);
    }
    buf_free(&text);
    buf_free(&clean);
}

static void test_harmony(void)
{
    static const struct text_list none;
    family = "gpt-oss";
    expect("<|start|>assistant",
           "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes", "hm", "yes",
           &none);
    expect("<|start|>assistant", "<|channel|>final<|message|>yes", "", "yes", &none);
    expect("<|start|>assistant", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", "{}", "",
           &none);
    expect("<|start|>assistant", "plain", "", "plain", &none);
}

int main(int argc, char **argv)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.vocab_only = true;
    test_clean();
    for (int i = 1; i < argc; i++) {
        if (pf_model_open(&model, argv[i], &o) < 0) {
            printf("%s\n", pf_last_error());
            return 1;
        }
        if (pf_token_find(model, "<|channel|>", 11) >= 0) {
            test_harmony();
        } else {
            test_reasoning();
            test_stops();
            test_characters();
        }
        pf_model_close(&model);
    }
    buf_free(&shown[0]);
    buf_free(&shown[1]);
    return check_status();
}
