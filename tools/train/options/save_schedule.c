/*
 * save_schedule.c - parse --save-schedule and decide which iterations are saved
 */
#include "tools/train/options/save_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"

#define ITERATION_MAX ((int64_t)1e15)   /* the limit that all counts among the options have */

struct schedule_reader {
    const char *text, *at;
    const char *option;
    struct err *e;
};

static int refuse_schedule_text(const struct schedule_reader *r, const char *where, const char *what)
{
    err_usage(r->e, "%s '%s': column %d: %s", r->option, r->text, (int)(where - r->text) + 1, what);
    return -1;
}

static int expected(const struct schedule_reader *r, const char *what)
{
    char text[120];

    if (*r->at)
        snprintf(text, sizeof text, "expected %s, found '%c'", what, *r->at);
    else
        snprintf(text, sizeof text, "expected %s, found the end", what);
    return refuse_schedule_text(r, r->at, text);
}

static int parse_schedule_number(struct schedule_reader *r, const char *what, int64_t *out)
{
    char word[24], text[120];
    size_t n = strspn(r->at, "0123456789_");

    if (!n)
        return expected(r, what);
    snprintf(word, sizeof word, "%.*s", (int)n, r->at);
    if (n >= sizeof word || parse_int(word, 1, ITERATION_MAX, out) < 0) {
        snprintf(text, sizeof text, "expected %s, found '%s'", what, word);
        return refuse_schedule_text(r, r->at, text);
    }
    r->at += n;
    return 0;
}

static int parse_schedule_sign(struct schedule_reader *r, char sign, const char *what)
{
    if (*r->at != sign)
        return expected(r, what);
    r->at++;
    return 0;
}

/*
 * Check that the range *s begins after the previous range, and contains an iteration to save. begin and interval are
 * the positions of the range and of its EVERY in the text, for error messages.
 */
static int check_stretch(const struct schedule_reader *r, const struct save_stretch *s,
                         const struct save_stretch *before, const char *begin, const char *interval)
{
    char text[120];

    if (s->last < s->first) {
        snprintf(text, sizeof text, "iterations %lld-%lld end before they begin", (long long)s->first,
                 (long long)s->last);
        return refuse_schedule_text(r, begin, text);
    }
    if (before && before->last == INT64_MAX) {
        snprintf(text, sizeof text, "nothing can follow %lld-, which has no end", (long long)before->first);
        return refuse_schedule_text(r, begin, text);
    }
    if (before && s->first <= before->last) {
        snprintf(text, sizeof text, "iteration %lld is not after %lld-%lld", (long long)s->first,
                 (long long)before->first, (long long)before->last);
        return refuse_schedule_text(r, begin, text);
    }
    if (s->last / s->every == (s->first - 1) / s->every) {
        snprintf(text, sizeof text, "no multiple of %lld lies in %lld-%lld: nothing would be saved",
                 (long long)s->every, (long long)s->first, (long long)s->last);
        return refuse_schedule_text(r, interval, text);
    }
    return 0;
}

static int parse_save_stretch(struct schedule_reader *r, struct save_stretch *s, const struct save_stretch *before)
{
    const char *begin, *interval;

    r->at += strspn(r->at, " ");
    begin = r->at;
    s->last = INT64_MAX;
    if (parse_schedule_number(r, "an iteration from 1 on", &s->first) < 0 ||
        parse_schedule_sign(r, '-', "'-' after the first iteration") < 0)
        return -1;
    if (*r->at != ':' && parse_schedule_number(r, "the last iteration, or ':'", &s->last) < 0)
        return -1;
    if (parse_schedule_sign(r, ':', "':' and an interval") < 0)
        return -1;
    interval = r->at;
    if (parse_schedule_number(r, "an interval of 1 or more iterations", &s->every) < 0)
        return -1;
    return check_stretch(r, s, before, begin, interval);
}

int save_schedule_parse(struct save_schedule *s, const char *text, const char *option, struct err *e)
{
    struct schedule_reader r = { text, text, option, e };

    s->n = 0;
    s->stretch = NULL;
    if (!text)
        return 0;
    do {
        s->stretch = xrealloc(s->stretch, (size_t)(s->n + 1) * sizeof *s->stretch);
        if (parse_save_stretch(&r, &s->stretch[s->n], s->n ? &s->stretch[s->n - 1] : NULL) < 0)
            return -1;
        s->n++;
    } while (*r.at == ',' && r.at++);
    return *r.at ? expected(&r, "',' or the end") : 0;
}

void save_schedule_free(struct save_schedule *s)
{
    free(s->stretch);
    s->stretch = NULL;
    s->n = 0;
}

static const struct save_stretch *stretch_of(const struct save_schedule *s, int64_t i)
{
    for (int k = 0; k < s->n; k++)
        if (i >= s->stretch[k].first && i <= s->stretch[k].last)
            return &s->stretch[k];
    return NULL;
}

bool save_schedule_due(const struct save_schedule *s, int64_t i)
{
    const struct save_stretch *in = stretch_of(s, i);
    const int64_t every = in ? in->every : s->rest;

    return every > 0 && i % every == 0;
}

bool save_schedule_lists(const struct save_schedule *s, int64_t i)
{
    return stretch_of(s, i) != NULL;
}
