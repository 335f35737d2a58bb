/* See page.h. */
#define _GNU_SOURCE
#include "cli/page.h"

#include <ctype.h>
#include <string.h>
#include <wchar.h>

/* ---- Styles ------------------------------------------------------------------------------------------------------ */

static void restyle(const struct page *p, struct buf *out)
{
    buf_puts(out, term_style(STYLE_PLAIN));
    if (p->base != STYLE_PLAIN)
        buf_puts(out, term_style(p->base));
    if (p->bold || p->line == PAGE_HEADING)
        buf_puts(out, term_style(STYLE_BOLD));
    if (p->code)
        buf_puts(out, term_style(STYLE_CODE));
}

/* Length of the mark at text[i] that opens or closes a style now; 0: there is none. ** opens in front of a character
 * and closes behind one. */
static size_t mark_at(const struct page *p, const char *text, size_t n, size_t i)
{
    if (text[i] == '`')
        return strspn(text + i, "`");
    bool stars = !p->code && i + 1 < n && text[i] == '*' && text[i + 1] == '*';
    return stars && (p->bold ? i > 0 : i + 2 < n) ? 2 : 0;
}

static void put_marked(struct page *p, struct buf *out)
{
    const char *text = buf_text(&p->word);
    for (size_t i = 0, len; i < p->word.n; i += len) {
        size_t mark = mark_at(p, text, p->word.n, i);
        bool *open = text[i] == '`' ? &p->code : &p->bold, closes = mark && *open;
        if (mark && !closes) {
            *open = true;
            restyle(p, out);
        }
        len = mark ? mark : 1;
        buf_add(out, text + i, len);
        if (closes) {
            *open = false;
            restyle(p, out);
        }
    }
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

/* The first word of a line may begin or end a block of code. */
static void see_fence(struct page *p, const char *word)
{
    char c = word[0];
    const char run[] = { c, 0 };
    int n = c == '`' || c == '~' ? (int)strspn(word, run) : 0;
    if (p->fence && c == p->fence && n >= p->n_fence && !word[n])
        p->fence = 0;
    else if (!p->fence && n >= 3 && !strchr(word + n, c)) {
        p->fence = c;
        p->n_fence = n;
    }
}

/* How far a line's first word, if it marks a list item or a quote, puts the text from the word's beginning; 0: it is
 * text itself. */
static int marker_columns(const char *word)
{
    size_t digits = strspn(word, "0123456789"), n = strlen(word);
    bool number = digits > 0 && digits < 4 && n == digits + 1 && (word[digits] == '.' || word[digits] == ')');
    bool sign = n == 1 && strchr("-*+>", word[0]);
    return number || sign ? (int)n + 1 : strcmp(word, "\u2022") == 0 ? 2 : 0;
}

/* Tells by its first word what a line is. */
static void see_line(struct page *p, struct buf *out)
{
    const char *word = buf_text(&p->word);
    bool was_code = p->fence != 0;
    size_t hashes = strspn(word, "#");
    p->indent = p->gap_columns + marker_columns(word);
    if (p->indent > p->width / 2)
        p->indent = 0;
    if (p->marks)
        see_fence(p, word);
    p->line = !p->marks ? PAGE_TEXT
            : was_code || p->fence || word[0] == '|' ? PAGE_AS_IS
            : hashes > 0 && hashes < 7 && !word[hashes] ? PAGE_HEADING : PAGE_TEXT;
    if (p->line == PAGE_HEADING)
        restyle(p, out);
}

static void put_gap(struct page *p, struct buf *out)
{
    buf_add(out, buf_text(&p->gap), p->gap.n);
    p->column += p->gap_columns;
}

static void drop_gap(struct page *p)
{
    buf_clear(&p->gap);
    p->gap_columns = 0;
}

static void break_line(struct page *p, struct buf *out)
{
    buf_printf(out, "\n%*s", p->indent, "");
    p->column = p->indent;
}

static void put_word(struct page *p, struct buf *out)
{
    if (p->word.n == 0)
        return;
    if (p->line == PAGE_LINE_BEGINS)
        see_line(p, out);
    bool fits = p->width == 0 || p->column + p->gap_columns + p->word_columns <= p->width;
    if (fits || p->glued || p->line == PAGE_AS_IS || p->column <= p->indent)
        put_gap(p, out);
    else
        break_line(p, out);
    drop_gap(p);
    if (p->marks && p->line != PAGE_AS_IS)
        put_marked(p, out);
    else
        buf_add(out, buf_text(&p->word), p->word.n);
    p->column += p->word_columns;
    if (p->width && p->column > p->width)                /* the terminal has broken it */
        p->column = (p->column - 1) % p->width + 1;
    buf_clear(&p->word);
    p->word_columns = 0;
    p->glued = false;
}

static void end_line(struct page *p, struct buf *out)
{
    put_word(p, out);
    drop_gap(p);
    bool styled = p->bold || p->code || p->line == PAGE_HEADING;
    p->bold = p->code = false;
    p->line = PAGE_LINE_BEGINS;
    p->column = p->indent = 0;
    if (styled)
        restyle(p, out);
    buf_puts(out, "\n");
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static int columns_of(const char *text, size_t n)
{
    int w = wcwidth((wchar_t)utf8_code_point(text, n));
    return w < 0 ? 1 : w;
}

static void put_blank(struct page *p, char c, struct buf *out)
{
    enum { TAB = 8 };
    put_word(p, out);
    int at = p->column + p->gap_columns;
    buf_add(&p->gap, &c, 1);
    p->gap_columns += c == '\t' ? TAB - at % TAB : 1;
}

/* Between characters of two columns (Chinese, Japanese) a line may be broken as between words. */
static void put_character(struct page *p, const char *text, size_t n, struct buf *out)
{
    int columns = columns_of(text, n);
    bool too_long = p->width && p->word_columns + columns > p->width;
    if (columns == 2 || too_long)
        put_word(p, out);
    p->glued |= too_long && columns < 2;
    buf_add(&p->word, text, n);
    p->word_columns += columns;
}

void page_begin(struct page *p, struct buf *out)
{
    page_free(p);
    *p = (struct page){ .width = p->width, .marks = p->marks, .base = p->base };
    term_locale();
    if (p->base != STYLE_PLAIN)
        buf_puts(out, term_style(p->base));
}

void page_put(struct page *p, const char *text, size_t n, struct buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_sequence(text + i, n - i);
        len = len ? len : 1;
        if (text[i] == '\n')
            end_line(p, out);
        else if (text[i] == ' ' || text[i] == '\t')
            put_blank(p, text[i], out);
        else
            put_character(p, text + i, len, out);
    }
}

void page_end(struct page *p, struct buf *out)
{
    put_word(p, out);
    drop_gap(p);
    buf_puts(out, term_style(STYLE_PLAIN));
}

void page_free(struct page *p)
{
    buf_free(&p->gap);
    buf_free(&p->word);
}

/* ---- Standard output --------------------------------------------------------------------------------------------- */

static void flush(struct buf *out)
{
    out_write(buf_text(out), out->n);
    out_flush();
    buf_free(out);
}

void page_show_begin(struct page *p, bool marks, enum style base)
{
    struct buf out = { 0 };
    p->marks = marks;
    p->base = base;
    p->width = term_columns();
    page_begin(p, &out);
    flush(&out);
}

void page_show(struct page *p, const char *text, size_t n)
{
    struct buf out = { 0 };
    p->width = term_columns();
    if (term_out_is_tty())
        page_put(p, text, n, &out);
    else
        buf_add(&out, text, n);
    flush(&out);
}

void page_show_end(struct page *p)
{
    struct buf out = { 0 };
    page_end(p, &out);
    flush(&out);
    page_free(p);
}
