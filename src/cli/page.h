/* How an answer is laid out on a terminal: lines are broken between words at its width, and markdown stays as it was
 * written, made easier to read.
 *
 *     clean text in pieces -> | gap | word | held until the word is whole -> broken, styled -> out
 *
 * All that comes goes out, in order, but for blanks where a line is broken or ends. Lines of code and of tables are not
 * broken; what is broken goes on under the text of its list item or quote. Headings and **strong** words are bold,
 * `code` has a colour, and their marks are kept: what is copied from the terminal is the markdown. One thread. */
#ifndef PF_CLI_PAGE_H
#define PF_CLI_PAGE_H

#include "program/io/term.h"

struct page {
    int        width;                /* columns; 0: not known, and no line is broken. May change between calls */
    bool       marks;                /* markdown is styled */
    enum style base;                 /* of everything */

    struct buf gap, word;            /* private from here on: held; blanks, and what stands behind them */
    int  gap_columns, word_columns;
    int  column, indent;             /* where the next character goes; where a broken line goes on */
    enum { PAGE_LINE_BEGINS, PAGE_TEXT, PAGE_HEADING, PAGE_AS_IS } line;
    bool glued;                      /* the word goes on one that is out already, being wider than the terminal */
    bool bold, code;                 /* open marks of this line */
    char fence;                      /* ` or ~: inside of a block of code that so many of them began; 0: not */
    int  n_fence;
};

/* Begins a text: all but width, marks and base as new; out gets the style. Held bytes of an earlier one are dropped. */
void page_begin(struct page *p, struct buf *out);
/* More of the text, of whole characters; appends to out what can be shown. */
void page_put(struct page *p, const char *text, size_t n, struct buf *out);
/* Lets go of what was held and appends the plain style. */
void page_end(struct page *p, struct buf *out);
void page_free(struct page *p);

/* The three on standard output, at the width that the terminal has; where it is none, text goes out as it comes. */
void page_show_begin(struct page *p, bool marks, enum style base);
void page_show(struct page *p, const char *text, size_t n);
void page_show_end(struct page *p);

#endif
