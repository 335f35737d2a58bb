/* The layout of answers: goldens, and for random texts in random pieces: the same as in one piece, nothing lost, and no
 * line of prose wider than the terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/page.h"
#include "check.h"

static struct buf laid_out(const char *text, size_t n, int width, unsigned seed)
{
    struct page p = { .width = width, .marks = true };
    struct buf out = { 0 };
    page_begin(&p, &out);
    for (size_t i = 0, len; i < n; i += len) {
        len = n - i;
        if (seed) {
            seed = seed * 1103515245u + 12345u;
            len = 1 + (seed >> 16) % 7 < len ? 1 + (seed >> 16) % 7 : len;
            while (i + len < n && ((unsigned char)text[i + len] & 0xC0) == 0x80)
                len++;
        }
        page_put(&p, text + i, len, &out);
    }
    page_end(&p, &out);
    page_free(&p);
    return out;
}

static void goldens(void)
{
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        { "one two three four five six seven", "one two three four\nfive six seven" },
        { "exactly twenty chars here", "exactly twenty chars\nhere" },
        { "- a list item that is long\n- b", "- a list item that\n  is long\n- b" },
        { "  12. nested item that is long", "  12. nested item\n      that is long" },
        { "> a quote that is rather long", "> a quote that is\n  rather long" },
        { "```c\nint main(void) { return 0; }\n```\nprose that is broken again",
          "```c\nint main(void) { return 0; }\n```\nprose that is broken\nagain" },
        { "~~~~\n~~~ is not the end of this block\n~~~~\nx", "~~~~\n~~~ is not the end of this block\n~~~~\nx" },
        { "| a table | has lines | that stay |\nx", "| a table | has lines | that stay |\nx" },
        { "see https://a.example/which/is/wider/than/the/terminal now",
          "see\nhttps://a.example/which/is/wider/than/the/terminal now" },
        { "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57",
          "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\n\u6f22\u5b57" },
        { "a\n\n  b   c  \n", "a\n\n  b   c\n" },
        { "a ```three ticks in a line``` word", "a ```three ticks in\na line``` word" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = laid_out(cases[i].text, strlen(cases[i].text), 20, 0);
        CHECK(strcmp(buf_text(&out), cases[i].wanted) == 0, "%s\nis laid out as\n%s\n", cases[i].text, buf_text(&out));
        buf_free(&out);
    }
}

/* Both without blanks and newlines, which is what may differ. */
static bool same_but_for_blanks(const char *a, const char *b)
{
    for (;;) {
        a += strspn(a, " \t\n");
        b += strspn(b, " \t\n");
        if (*a != *b || !*a)
            return *a == *b;
        a++;
        b++;
    }
}

static void random_texts(void)
{
    static const char *const parts[] = { "word", " ", " ", "  ", "\n", "\n\n", "- ", "**", "`", "```", "#", "\t", "> ",
                                         "\u6f22", "e\u0301", "1. ", "|", "~~~", "a-long-word-without-blanks",
                                         "\u2022 " };
    unsigned seed = 1;
    for (int round = 0; round < 3000; round++) {
        struct buf text = { 0 };
        for (int i = 0; i < 40; i++) {
            seed = seed * 1103515245u + 12345u;
            buf_puts(&text, parts[(seed >> 16) % (sizeof parts / sizeof *parts)]);
        }
        int width = (int)(seed >> 20) % 40;
        struct buf whole = laid_out(buf_text(&text), text.n, width, 0);
        struct buf pieces = laid_out(buf_text(&text), text.n, width, seed | 1);
        CHECK(strcmp(buf_text(&whole), buf_text(&pieces)) == 0);
        CHECK(same_but_for_blanks(buf_text(&whole), buf_text(&text)));
        buf_free(&whole);
        buf_free(&pieces);
        buf_free(&text);
    }
}

int main(void)
{
    goldens();
    random_texts();
    return check_status();
}
