/* The pre-tokenizers: classes, rules, passes, and the table of names. See pretok.h.
 *
 *     text --pass 0--> chunks --pass 1--> smaller chunks --...--> the caller's function
 *
 * A pass walks over a chunk: at each character its rules are tried in order, the first that matches cuts a chunk out;
 * the characters between two matches are a chunk too. Each chunk goes through the remaining passes at once, so
 * nothing is stored and the recursion is as deep as there are passes. A chunk is a text of its own to the next pass:
 * what stands around it is not seen. Rules look at a character through its class bits: general category, White_Space
 * and a few characters that patterns name. The regular expressions that the rules stand for are beside them, in the
 * usual notation; C stands for (?i:'s|'t|'re|'ve|'m|'ll|'d) and U, L for the letters and marks that may begin and end
 * a cased word.
 *
 * Linear time: a rule that fails must have looked at no more than the run of characters that a later rule of the same
 * pass then takes. That is why space at a chunk's end and digits counted from the right are passes and not rules. */
#include "text/pretok.h"

#include <string.h>
#include <utf8proc.h>

#include "pfmoe.h"
#include "text/utf8.h"

/* ---- Classes ----------------------------------------------------------------------------------------------- */

#define CAT(name) (UINT64_C(1) << UTF8PROC_CATEGORY_##name)
#define UPPER     (CAT(LU) | CAT(LT))
#define UNCASED   (CAT(LM) | CAT(LO))
#define LETTER    (UPPER | CAT(LL) | UNCASED)
#define MARK      (CAT(MN) | CAT(MC) | CAT(ME))
#define NUMBER    (CAT(ND) | CAT(NL) | CAT(NO))
#define PUNCT     (CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO))
#define SYMBOL    (CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO))
#define WHITE     (UINT64_C(1) << 32)                /* White_Space */
#define BLANK     (UINT64_C(1) << 33)                /* U+0020 */
#define CR        (UINT64_C(1) << 34)
#define LF        (UINT64_C(1) << 35)
#define SLASH     (UINT64_C(1) << 36)
#define NEWLINE   (CR | LF)
#define ANY       UINT64_MAX
#define WORD_UPPER (UPPER | UNCASED | MARK)          /* U: may stand in the first part of a cased word */
#define WORD_LOWER (CAT(LL) | UNCASED | MARK)        /* L: in the second part */

struct range {
    uint32_t lo, hi;
};

/* Characters that have a bit of `in` and none of `out`, or lie in one of the ranges (rising, apart). */
struct set {
    uint64_t in, out;
    const struct range *ranges;
    size_t n_ranges;
};
#define RANGES(r) .ranges = (r), .n_ranges = sizeof (r) / sizeof *(r)

static bool in_ranges(const struct range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && cp >= r[lo].lo;
}

/* Classes of the ASCII characters, of which most text consists. */
static const uint64_t ascii_bits[128] = {
    [0 ... 8] = CAT(CC), ['\t'] = CAT(CC) | WHITE, ['\n'] = CAT(CC) | WHITE | LF, ['\v' ... '\f'] = CAT(CC) | WHITE,
    ['\r'] = CAT(CC) | WHITE | CR, [14 ... 31] = CAT(CC), [' '] = CAT(ZS) | WHITE | BLANK, ['!' ... '#'] = CAT(PO),
    ['$'] = CAT(SC), ['%' ... '\''] = CAT(PO), ['('] = CAT(PS), [')'] = CAT(PE), ['*'] = CAT(PO), ['+'] = CAT(SM),
    [','] = CAT(PO), ['-'] = CAT(PD), ['.'] = CAT(PO), ['/'] = CAT(PO) | SLASH, ['0' ... '9'] = CAT(ND),
    [':' ... ';'] = CAT(PO), ['<' ... '>'] = CAT(SM), ['?' ... '@'] = CAT(PO), ['A' ... 'Z'] = CAT(LU),
    ['['] = CAT(PS), ['\\'] = CAT(PO),
    [']'] = CAT(PE), ['^'] = CAT(SK), ['_'] = CAT(PC), ['`'] = CAT(SK), ['a' ... 'z'] = CAT(LL), ['{'] = CAT(PS),
    ['|'] = CAT(SM), ['}'] = CAT(PE), ['~'] = CAT(SM), [127] = CAT(CC),
};

static bool is_wide_space(uint32_t cp)
{
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static uint64_t bits_of(uint32_t cp)
{
    if (cp < 128)
        return ascii_bits[cp];
    return UINT64_C(1) << utf8proc_category((utf8proc_int32_t)cp) | (is_wide_space(cp) ? WHITE : 0);
}

/* The character at p: its length, and what rules ask about it. */
struct ch {
    size_t len;
    uint32_t cp;
    uint64_t bits;
};

/* The chunk a pass works on: bytes [0, n) of s. */
struct text {
    const char *s;
    size_t n;
};

/* Past the end there is a character of length 0 that is in no set. */
static struct ch at(struct text t, size_t p)
{
    struct ch c = { 0 };
    if (p < t.n) {
        c.len = pf_utf8_next(t.s + p, t.n - p, &c.cp);
        c.bits = bits_of(c.cp);
    }
    return c;
}

static bool has(const struct set *set, struct ch c)
{
    if ((c.bits & set->in) && !(c.bits & set->out))
        return true;
    return set->n_ranges && c.len && in_ranges(set->ranges, set->n_ranges, c.cp);
}

/* ---- Rules ------------------------------------------------------------------------------------------------- */

enum rule_kind {
    RUN,                 /* lead? body{min,max} tail{0,tail_max}; lead is mandatory when must_lead */
    CONTRACTION,         /* 's 't 're 've 'm 'll 'd */
    CASED_WORD,          /* lead? U* L+ | lead? U+ L*, each followed by C?; no Han when no_han; U and L are
                            all letters and marks when any_case */
    PHRASE,              /* lead? then letters with marks, single blanks between them allowed */
    NEWLINES,            /* \s*[\r\n]+ */
    SPACES               /* \s+(?!\S)|\s+ */
};
enum fold { AS_WRITTEN, FOLD_ASCII, FOLD_UNICODE };
struct rule {
    enum rule_kind kind;
    enum fold fold;      /* how contractions match; in a CASED_WORD, AS_WRITTEN: no contraction follows */
    struct set lead, body, tail;
    size_t min, max, tail_max;           /* 0: 1, no limit, no limit */
    bool must_lead, no_han, any_case;
};

/* End of the run of at most max characters of the set from p on; *count is how many. */
static size_t span(const struct set *set, struct text t, size_t p, size_t max, size_t *count)
{
    size_t n = 0;
    for (struct ch c = at(t, p); n < max && c.len && has(set, c); c = at(t, p)) {
        p += c.len;
        n++;
    }
    *count = n;
    return p;
}

/* Every match_ function returns where the match that begins at p ends, or p if there is none. */

static size_t match_run_body(const struct rule *r, struct text t, size_t p)
{
    size_t n, ignored;
    size_t end = span(&r->body, t, p, r->max ? r->max : SIZE_MAX, &n);
    if (n < (r->min ? r->min : 1))
        return p;
    return r->tail.in ? span(&r->tail, t, end, r->tail_max ? r->tail_max : SIZE_MAX, &ignored) : end;
}

static size_t match_run(const struct rule *r, struct text t, size_t p)
{
    struct ch c = at(t, p);
    if (has(&r->lead, c)) {
        size_t end = match_run_body(r, t, p + c.len);
        if (end > p + c.len)
            return end;
    }
    return r->must_lead ? p : match_run_body(r, t, p);
}

/* The lower-case ASCII letter that c equals under (?i), 0 if none. In full Unicode the long s, U+017F, is an s. */
static char folded(struct ch c, enum fold fold)
{
    if (c.cp >= 0x80)
        return fold == FOLD_UNICODE && c.cp == 0x17F ? 's' : 0;
    return (char)(fold != AS_WRITTEN && c.cp >= 'A' && c.cp <= 'Z' ? c.cp + 32 : c.cp);
}

static size_t match_contraction(struct text t, size_t p, enum fold fold)
{
    if (p >= t.n || t.s[p] != '\'')
        return p;
    struct ch c1 = at(t, p + 1);
    char a = folded(c1, fold);
    size_t end = p + 1 + c1.len;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return end;
    struct ch c2 = at(t, end);
    char b = folded(c2, fold);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return end + c2.len;
    return p;
}

/* Script=Han as of Unicode 15. */
static const struct range han[] = {
    {0x2E80, 0x2E99}, {0x2E9B, 0x2EF3}, {0x2F00, 0x2FD5}, {0x3005, 0x3005}, {0x3007, 0x3007}, {0x3021, 0x3029},
    {0x3038, 0x303B}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFA6D}, {0xFA70, 0xFAD9}, {0x16FE2, 0x16FE3},
    {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B738}, {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1},
    {0x2CEB0, 0x2EBE0}, {0x2F800, 0x2FA1D}, {0x30000, 0x3134A}, {0x31350, 0x323AF},
};

/* Whether c may stand in this part (U or L) of a cased word. */
static bool in_word(const struct rule *r, struct ch c, uint64_t part)
{
    if (r->no_han && in_ranges(han, sizeof han / sizeof *han, c.cp))
        return false;
    return c.bits & (r->any_case ? LETTER | MARK : part);
}

/* U*L+ from p: the longest run of U, then of L; when no L follows, back to the last character of the run that is in
 * both. */
static size_t match_word_lower(const struct rule *r, struct text t, size_t p)
{
    size_t end = p, last = p;
    struct ch c;
    for (c = at(t, p); in_word(r, c, WORD_UPPER); c = at(t, end)) {
        end += c.len;
        if (in_word(r, c, WORD_LOWER))
            last = end;
    }
    for (; in_word(r, c, WORD_LOWER); c = at(t, end)) {
        end += c.len;
        last = end;
    }
    return last;
}

/* U+L* from p, after U*L+ has failed there: so nothing of L follows. */
static size_t match_word_upper(const struct rule *r, struct text t, size_t p)
{
    for (struct ch c = at(t, p); in_word(r, c, WORD_UPPER); c = at(t, p))
        p += c.len;
    return p;
}

static size_t match_cased_word(const struct rule *r, struct text t, size_t p)
{
    struct ch c = at(t, p);
    size_t after = has(&r->lead, c) ? p + c.len : p, end = after;
    if (after > p)
        end = match_word_lower(r, t, after);
    if (end == after)
        end = match_word_lower(r, t, p);
    if (end == p && after > p) {
        end = match_word_upper(r, t, after);
        end = end == after ? p : end;
    }
    if (end == p)
        end = match_word_upper(r, t, p);
    if (end == p)
        return p;
    return r->fold == AS_WRITTEN ? end : match_contraction(t, end, r->fold);
}

/* (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+: letters and marks, beginning with a letter, and blanks that a letter follows. */
static size_t match_phrase(const struct rule *r, struct text t, size_t p)
{
    struct ch c = at(t, p);
    size_t start = has(&r->lead, c) && (at(t, p + c.len).bits & LETTER) ? p + c.len : p;
    if (!(at(t, start).bits & LETTER))
        return p;
    size_t end = start;
    for (c = at(t, end); c.len; c = at(t, end)) {
        if (!(c.bits & (LETTER | MARK)) && !((c.bits & BLANK) && (at(t, end + 1).bits & LETTER)))
            break;
        end += c.len;
    }
    return end;
}

static size_t match_newlines(struct text t, size_t p)
{
    size_t end = p, last = p;
    for (struct ch c = at(t, p); c.bits & WHITE; c = at(t, end)) {
        end += c.len;
        if (c.bits & NEWLINE)
            last = end;
    }
    return last;
}

/* All the space at the chunk's end; elsewhere all but the last character, which leads the next chunk, unless it is
 * alone. */
static size_t match_spaces(struct text t, size_t p)
{
    size_t end = p, before_last = p;
    for (struct ch c = at(t, p); c.bits & WHITE; c = at(t, end)) {
        before_last = end;
        end += c.len;
    }
    return end == t.n || before_last == p ? end : before_last;
}

static size_t match(const struct rule *r, struct text t, size_t p)
{
    switch (r->kind) {
    case RUN:         return match_run(r, t, p);
    case CONTRACTION: return match_contraction(t, p, r->fold);
    case CASED_WORD:  return match_cased_word(r, t, p);
    case PHRASE:      return match_phrase(r, t, p);
    case NEWLINES:    return match_newlines(t, p);
    case SPACES:      return match_spaces(t, p);
    }
    return p;
}

/* ---- Passes ------------------------------------------------------------------------------------------------ */

enum pass_kind { RULES, TRAILING_SPACE, DIGITS_FROM_RIGHT };
struct pf_pretok_pass {
    enum pass_kind kind;
    const struct rule *rules;
    size_t n_rules;
};

struct job {
    const struct pf_pretok *pt;
    const char *text;
    pf_chunk_fn *chunk;
    void *ctx;
};

static pf_status run_passes(const struct job *j, int pass, size_t from, size_t to);

/* Hands [from, to) to the pass after this one, if there is anything in it. */
static pf_status cut(const struct job *j, int pass, size_t from, size_t to)
{
    return from < to ? run_passes(j, pass + 1, from, to) : PF_OK;
}

static pf_status run_rules(const struct job *j, int pass, size_t from, size_t to)
{
    const struct pf_pretok_pass *ps = &j->pt->passes[pass];
    struct text t = { j->text + from, to - from };
    size_t gap = 0, p = 0;                   /* [gap, p) was matched by nothing so far */
    while (p < t.n) {
        size_t end = p;
        for (size_t i = 0; i < ps->n_rules && end == p; i++)
            end = match(&ps->rules[i], t, p);
        if (end == p) {
            p += at(t, p).len;
            continue;
        }
        PF_TRY(cut(j, pass, from + gap, from + p));
        PF_TRY(cut(j, pass, from + p, from + end));
        gap = p = end;
    }
    return cut(j, pass, from + gap, to);
}

/* \s+$ */
static pf_status run_trailing_space(const struct job *j, int pass, size_t from, size_t to)
{
    struct text t = { j->text + from, to - from };
    size_t start = 0;                        /* start of the white space that reaches up to p */
    for (size_t p = 0; p < t.n;) {
        struct ch c = at(t, p);
        p += c.len;
        if (!(c.bits & WHITE))
            start = p;
    }
    PF_TRY(cut(j, pass, from, from + start));
    return cut(j, pass, from + start, to);
}

/* Runs of numbers in threes counted from their right end, so that the first group may be shorter. */
static pf_status run_digits_from_right(const struct job *j, int pass, size_t from, size_t to)
{
    static const struct set number = { .in = NUMBER };
    struct text t = { j->text + from, to - from };
    size_t gap = 0, p = 0;
    while (p < t.n) {
        size_t count, n;
        size_t run_end = span(&number, t, p, SIZE_MAX, &count);
        if (count == 0) {
            p += at(t, p).len;
            continue;
        }
        PF_TRY(cut(j, pass, from + gap, from + p));
        for (size_t group = (count - 1) % 3 + 1; p < run_end; group = 3) {
            size_t end = span(&number, t, p, group, &n);
            PF_TRY(cut(j, pass, from + p, from + end));
            p = end;
        }
        gap = p;
    }
    return cut(j, pass, from + gap, to);
}

static pf_status run_passes(const struct job *j, int pass, size_t from, size_t to)
{
    if (pass == j->pt->n_passes)
        return j->chunk(j->ctx, from, to);
    switch (j->pt->passes[pass].kind) {
    case TRAILING_SPACE:    return run_trailing_space(j, pass, from, to);
    case DIGITS_FROM_RIGHT: return run_digits_from_right(j, pass, from, to);
    case RULES:             break;
    }
    return run_rules(j, pass, from, to);
}

pf_status pf_pretok_run(const struct pf_pretok *pt, const char *text, size_t len, pf_chunk_fn *chunk, void *ctx)
{
    struct job j = { pt, text, chunk, ctx };
    return len ? run_passes(&j, 0, 0, len) : PF_OK;
}

/* ---- The patterns ------------------------------------------------------------------------------------------ */

#define NOT(x)            { .in = ANY, .out = (x) }
#define NUMBERS(limit)    { .kind = RUN, .body = { .in = NUMBER }, .max = (limit) }
#define CONTRACTIONS      { .kind = CONTRACTION, .fold = FOLD_UNICODE }
#define NEWLINE_RULE      { .kind = NEWLINES }
#define SPACE_RULE        { .kind = SPACES }
/* [^\r\n\p{L}\p{N}]?body+ */
#define LED_LETTERS(x)    { .kind = RUN, .lead = NOT(NEWLINE | LETTER | NUMBER), .body = { .in = (x) } }
/* ' ?[^\s not]+[tail]*' */
#define OTHERS(x, tails)  { .kind = RUN, .lead = { .in = BLANK }, .body = NOT(WHITE | (x)), .tail = { .in = (tails) } }
#define LED_CASED         .kind = CASED_WORD, .lead = NOT(NEWLINE | LETTER | NUMBER)
#define RANGE_RUN(r)      { .kind = RUN, .body = { RANGES(r) } }

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const struct rule gpt2[] = {
    { .kind = CONTRACTION },
    { .kind = RUN, .lead = { .in = BLANK }, .body = { .in = LETTER } },
    { .kind = RUN, .lead = { .in = BLANK }, .body = { .in = NUMBER } },
    OTHERS(LETTER | NUMBER, 0),
    SPACE_RULE,
};

/* C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
#define LLAMA3_LIKE(folding, digits)                                                                                   \
    { { .kind = CONTRACTION, .fold = (folding) }, LED_LETTERS(LETTER), NUMBERS(digits),                                \
      OTHERS(LETTER | NUMBER, NEWLINE), NEWLINE_RULE, SPACE_RULE }
static const struct rule llama3[] = LLAMA3_LIKE(FOLD_UNICODE, 3);
static const struct rule qwen2[] = LLAMA3_LIKE(FOLD_UNICODE, 1);       /* \p{N} */
static const struct rule qwen2_ascii[] = LLAMA3_LIKE(FOLD_ASCII, 1);   /* with contractions in ASCII alone */
static const struct rule llama3_any_digits[] = LLAMA3_LIKE(FOLD_ASCII, 0);     /* so too; \p{N}+ */

/* C|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const struct rule qwen35[] = {
    CONTRACTIONS, LED_LETTERS(LETTER | MARK), NUMBERS(1), OTHERS(LETTER | MARK | NUMBER, NEWLINE),
    NEWLINE_RULE, SPACE_RULE,
};

/* qwen2 with  ?[^\s\p{L}\p{N}\r\n]+ and no newlines after it. */
static const struct rule seed_coder[] = {
    CONTRACTIONS, LED_LETTERS(LETTER), NUMBERS(1), OTHERS(LETTER | NUMBER | NEWLINE, 0), NEWLINE_RULE, SPACE_RULE,
};

/* '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+
 * is qwen2: a possessive lead and body cannot be given back there anyway, and \s* before one newline takes the
 * others. */

/* C|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+ */
static const struct rule exaone_moe[] = {
    CONTRACTIONS,
    { .kind = PHRASE, .lead = NOT(NEWLINE | LETTER | NUMBER) },
    NUMBERS(1),
    { .kind = RUN, .lead = { .in = BLANK }, .body = NOT(WHITE | LETTER | NUMBER), .tail = { .in = NEWLINE | SLASH },
      .tail_max = 1 },
    NEWLINE_RULE, SPACE_RULE,
};

/* [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
#define O200K_LIKE(folding, digits)                                                                               \
    { { LED_CASED, .fold = (folding) }, NUMBERS(digits), OTHERS(LETTER | NUMBER, NEWLINE | SLASH), NEWLINE_RULE,       \
      SPACE_RULE }
static const struct rule o200k[] = O200K_LIKE(FOLD_UNICODE, 3);
static const struct rule tekken[] = O200K_LIKE(AS_WRITTEN, 1);

/* o200k without regard to case, as llama.cpp reads it for tiny_aya and youtu, whose own tokenizers could not be
 * compared. */
#define UNCASED_LIKE(digits)                                                                                           \
    { { LED_CASED, .fold = FOLD_ASCII, .any_case = true }, NUMBERS(digits),                                            \
      OTHERS(LETTER | NUMBER, NEWLINE | SLASH), NEWLINE_RULE, SPACE_RULE }
static const struct rule o200k_uncased[] = UNCASED_LIKE(3);
static const struct rule o200k_uncased_one_digit[] = UNCASED_LIKE(1);

/* [\p{Han}]+ first, then o200k with Han taken out of U and L and no / after punctuation. */
static const struct rule kimi_k2[] = {
    RANGE_RUN(han),
    { LED_CASED, .fold = FOLD_UNICODE, .no_han = true },
    NUMBERS(3), OTHERS(LETTER | NUMBER, NEWLINE), NEWLINE_RULE, SPACE_RULE,
};

static const struct range ascii_letters[] = { {'A', 'Z'}, {'a', 'z'} };
static const struct range ascii_punct[] = { {'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'} };
static const struct range ascii_digits[] = { {'0', '9'} };

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
#define PUNCT_THEN_WORD                                                                                                \
    { .kind = RUN, .lead = { RANGES(ascii_punct) }, .must_lead = true, .body = { RANGES(ascii_letters) } },            \
    { .kind = RUN, .lead = NOT(NEWLINE | LETTER | PUNCT | SYMBOL), .body = { .in = LETTER | MARK } }
#define PUNCT_RUN(tails)                                                                                               \
    { .kind = RUN, .lead = { .in = BLANK }, .body = { .in = PUNCT | SYMBOL }, .tail = { .in = (tails) } }
static const struct rule deepseek_v3[] = { PUNCT_THEN_WORD, PUNCT_RUN(NEWLINE), NEWLINE_RULE, SPACE_RULE };
/* deepseek_v3 without newlines after punctuation, and one newline at a time. */
static const struct rule spark2_5[] = {
    PUNCT_THEN_WORD, PUNCT_RUN(0), { .kind = RUN, .body = { .in = NEWLINE }, .max = 1 }, SPACE_RULE,
};

static const struct rule threes[] = { NUMBERS(3) };
static const struct rule ones[] = { NUMBERS(1) };
static const struct rule all_numbers[] = { NUMBERS(0) };
static const struct rule three_digits[] = { { .kind = RUN, .body = { RANGES(ascii_digits) }, .min = 3, .max = 3 } };
static const struct rule one_newline[] = { { .kind = RUN, .body = { .in = NEWLINE }, .max = 1 } };
static const struct rule lines[] = { { .kind = RUN, .body = NOT(LF) }, { .kind = RUN, .body = { .in = LF } } };

static const struct range han_kana_ranges[] = { {0x3040, 0x30FF}, {0x4E00, 0x9FA5} };
static const struct rule han_kana[] = { RANGE_RUN(han_kana_ranges) };

/* The Greek, Cyrillic, Armenian, Latin ... letters that had case when the model was made. */
static const struct range cased_ranges[] = {
    {0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA}, {0x1BC, 0x1BF},
    {0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x377}, {0x37B, 0x37D}, {0x37F, 0x37F}, {0x386, 0x386},
    {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1}, {0x3A3, 0x3F5}, {0x3F7, 0x481}, {0x48A, 0x52F}, {0x531, 0x556},
    {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15}, {0x1F18, 0x1F1D}, {0x1F20, 0x1F45}, {0x1F48, 0x1F4D},
    {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4},
    {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210A, 0x2113},
    {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212A, 0x212D},
    {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F}, {0x2145, 0x2149}, {0x214E, 0x214E}, {0x2183, 0x2184},
    {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE}, {0x2CF2, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B},
    {0xA722, 0xA76F}, {0xA771, 0xA787}, {0xA78B, 0xA78E}, {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};
/* [!-/:-~!-/:-~‘-‟ -。], the second half full-width. The class has letters, too: : to ~ is not only punctuation. */
static const struct range deepseek_punct_ranges[] = {
    {'!', '/'}, {':', '~'}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};
/* [一-龥ࠀ-一가-퟿] less White_Space: U+0800-9FA5 spans kana and much else; a space in it stays with what follows. */
static const struct range east_asian_ranges[] = {
    {0x0800, 0x167F}, {0x1681, 0x1FFF}, {0x200B, 0x2027}, {0x202A, 0x202E}, {0x2030, 0x205E}, {0x2060, 0x2FFF},
    {0x3001, 0x9FA5}, {0xAC00, 0xD7FF},
};
static const struct rule cased_words[] = { { .kind = RUN, .lead = { .in = WHITE }, .body = { RANGES(cased_ranges) } } };
static const struct rule deepseek_punct[] = {
    { .kind = RUN, .lead = { .in = WHITE }, .body = { RANGES(deepseek_punct_ranges) } },
};
static const struct rule east_asian[] = { RANGE_RUN(east_asian_ranges) };
static const struct rule spaced_letters[] = { { .kind = RUN, .lead = { .in = WHITE }, .body = { .in = LETTER } } };
static const struct rule spaced_punct[] = { { .kind = RUN, .lead = { .in = WHITE }, .body = { .in = PUNCT } } };

/* Scripts that are written without spaces, from Thai to Hangul. */
static const struct range afmoe_ranges[] = {
    {0x0E40, 0x0EFF}, {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF}, {0x2F00, 0x2FDF}, {0x3040, 0x30FF},
    {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F}, {0xAC00, 0xD7AF}, {0xF900, 0xFAFF},
    {0xFF65, 0xFF9F},
};
static const struct rule unspaced[] = { RANGE_RUN(afmoe_ranges) };

/* [가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+ */
static const struct range hangul_ranges[] = { {0x3131, 0x318E}, {0xAC00, 0xD7A3} };
static const struct range cjk_punct_ranges[] = {
    {0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D}, {0x2026, 0x2026}, {0x3001, 0x303F}, {0xFE30, 0xFE4F},
    {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B},
};
static const struct range bopomofo_ranges[] = { {0x3105, 0x312F} };
static const struct rule youtu[] = {
    RANGE_RUN(hangul_ranges), RANGE_RUN(cjk_punct_ranges), RANGE_RUN(bopomofo_ranges), RANGE_RUN(han_kana_ranges),
};

/* [\p{P}\$\+<=>\^~\|]+ without and with the backquote. */
static const struct range math_signs[] = { {'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'|', '|'}, {'~', '~'} };
static const struct range math_signs_backquote[] = {
    {'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'`', '`'}, {'|', '|'}, {'~', '~'},
};
static const struct rule default_punct[] = { { .kind = RUN, .body = { .in = PUNCT, RANGES(math_signs) } } };
static const struct rule falcon_punct[] = { { .kind = RUN, .body = { .in = PUNCT, RANGES(math_signs_backquote) } } };

/* ---- The names --------------------------------------------------------------------------------------------- */

#define PASS(r)           { .kind = RULES, .rules = (r), .n_rules = sizeof (r) / sizeof *(r) }
#define PASS_LIST(...)    (const struct pf_pretok_pass[]){ __VA_ARGS__ }
#define PASSES(...)       .passes = PASS_LIST(__VA_ARGS__),                                                            \
                          .n_passes = sizeof(PASS_LIST(__VA_ARGS__)) / sizeof(struct pf_pretok_pass)

static const struct pf_pretok pretoks[] = {
    { "gpt-4o ", PASSES(PASS(o200k)), .ignore_merges = true },
    { "llama4 kanana2 talkie minimax-m2 ", PASSES(PASS(o200k)) },
    { "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ", PASSES(PASS(llama3)),
      .add_bos = true, .ignore_merges = true },
    { "dbrx smaug-bpe glm4 chatglm-bpe ", PASSES(PASS(llama3)) },
    { "qwen2 ", PASSES(PASS(qwen2)), .nfc = true },
    { "deepseek-r1-qwen kormo f2llmv2 openpangu megrez stablelm2 hunyuan solar-open grok-2 ", PASSES(PASS(qwen2)) },
    { "bailingmoe bailingmoe2 llada-moe ", PASSES(PASS(qwen2)) },
    { "qwen35 ", PASSES(PASS(qwen35)), .nfc = true },
    { "deepseek-v3 joyai-llm hunyuan-dense hy_v4 ", PASSES(PASS(threes), PASS(han_kana), PASS(deepseek_v3)) },
    { "deepseek-llm ", PASSES(PASS(one_newline), PASS(cased_words), PASS(deepseek_punct), { .kind = TRAILING_SPACE },
                              PASS(east_asian), PASS(all_numbers)) },
    { "deepseek-coder ", PASSES(PASS(one_newline), PASS(spaced_letters), PASS(spaced_punct), PASS(east_asian),
                                PASS(ones)) },
    { "gpt-2 phi-2 gigachat a.x-4.0 exaone4 jais trillion granite-docling mellum modern-bert ", PASSES(PASS(gpt2)) },
    { "mpt olmo ", PASSES(PASS(gpt2)), .nfc = true },
    { "refact starcoder command-r cohere2_moe smollm codeshell exaone minerva-7b mellum2 ",
      PASSES(PASS(ones), PASS(gpt2)) },
    { "kimi-k2 ", PASSES(PASS(kimi_k2)), .rank_by_id = true },
    { "tekken ", PASSES(PASS(tekken)), .add_bos = true, .ignore_merges = true },
    { "exaone-moe ", PASSES(PASS(exaone_moe)) },
    { "seed-coder ", PASSES(PASS(seed_coder)) },
    { "afmoe ", PASSES({ .kind = DIGITS_FROM_RIGHT }, PASS(unspaced), PASS(deepseek_v3)) },
    { "tiny_aya cohere2moe ", PASSES({ .kind = DIGITS_FROM_RIGHT }, PASS(o200k_uncased)) },
    { "youtu ", PASSES(PASS(youtu), PASS(o200k_uncased_one_digit)), .ignore_merges = true },
    { "laguna ", PASSES(PASS(lines), PASS(qwen2_ascii)) },
    { "spark2_5 ", PASSES(PASS(threes), PASS(han_kana), PASS(spark2_5), PASS(ones)) },
    { "minicpm5 ", PASSES(PASS(threes), PASS(llama3_any_digits)), .ignore_merges = true },
    { "falcon ", PASSES(PASS(falcon_punct), PASS(gpt2), PASS(three_digits)) },
    { "default ", PASSES(PASS(default_punct), PASS(gpt2), PASS(all_numbers), PASS(three_digits)) },
};

const struct pf_pretok *pf_pretok_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof pretoks / sizeof *pretoks; i++)
        for (const char *p = pretoks[i].names; *p;) {
            size_t n = strcspn(p, " ");
            if (n == len && memcmp(p, name, n) == 0)
                return &pretoks[i];
            p += n + 1;
        }
    return NULL;
}

struct ends {
    size_t *out, cap, n;
};

static pf_status store_end(void *ctx, size_t from, size_t to)
{
    struct ends *e = ctx;
    (void)from;
    if (e->n < e->cap)
        e->out[e->n] = to;
    e->n++;
    return PF_OK;
}

pf_status pf_pretokenize(const char *pre, const char *text, size_t len, size_t *ends, size_t cap, size_t *n)
{
    *n = 0;
    const struct pf_pretok *pt = pf_pretok_find(pre, strlen(pre));
    if (!pt)
        PF_FAIL(PF_EUNSUPPORTED, "there is no pre-tokenizer named \"%.64s\"", pre);
    struct ends e = { ends, cap, 0 };
    PF_TRY(pf_pretok_run(pt, text, len, store_end, &e));
    *n = e.n;
    if (e.n > cap)
        PF_FAIL(PF_ESPACE, "the text has %zu chunks, the buffer holds %zu", e.n, cap);
    return PF_OK;
}
