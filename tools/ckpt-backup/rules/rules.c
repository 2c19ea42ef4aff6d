/*
 * rules.c - read a rules file line by line
 */
#include "tools/ckpt-backup/rules/rules.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"

enum { RULES_MAX_BYTES = 1 << 20, LIST_MAX_STEPS = 1 << 16 };
static const int64_t STEP_MAX = INT64_C(1) << 53;      /* the largest integer that a JSON number holds exactly */

/*
 * The state of the parser: the current line, for messages, and the rules that have been read. A rule applies to the
 * last place named before it.
 */
struct rules_reading {
    struct rules *rules;
    const char *path;
    int line;
    struct err *e;
};

static struct rules_place *current(struct rules_reading *rd)
{
    return rd->rules->n_places ? &rd->rules->place[rd->rules->n_places - 1] : NULL;
}

static struct rules_keep *current_keep(struct rules_reading *rd)
{
    return current(rd) ? &current(rd)->keep : &rd->rules->keep;
}

static int bad_number(struct rules_reading *rd, const char *rule, const char *value)
{
    err_usage(rd->e, "%s: line %d: %s: '%s' is not a whole number of 1 or more", rd->path, rd->line, rule, value);
    return -1;
}

static int parse_rule_number(struct rules_reading *rd, const char *rule, const char *value, int64_t *into)
{
    if (parse_int(value, 1, STEP_MAX, into) < 0)
        return bad_number(rd, rule, value);
    return 0;
}

/* Parse a list such as "31200,31259", and add the steps to those already in p. */
static int parse_rule_steps(struct rules_reading *rd, const char *rule, char *value, struct rules_pick *p)
{
    char *rest = value, *word;

    while ((word = strsep(&rest, ","))) {
        int64_t step;

        while (isspace((unsigned char)*word))
            word++;
        if (parse_rule_number(rd, rule, word, &step) < 0)
            return -1;
        if (p->n == LIST_MAX_STEPS) {
            err_usage(rd->e, "%s: line %d: more than %d steps", rd->path, rd->line, LIST_MAX_STEPS);
            return -1;
        }
        ARRAY_ROOM(p->step, p->cap, p->n + 1);
        p->step[p->n++] = step;
    }
    return 0;
}

/* ---- rules ---- */

static int parse_keep_last_rule(struct rules_reading *rd, char *value)
{
    current_keep(rd)->given = true;
    return parse_rule_number(rd, "keep-last", value, &current_keep(rd)->last);
}

static int parse_keep_every_rule(struct rules_reading *rd, char *value)
{
    current_keep(rd)->given = true;
    return parse_rule_number(rd, "keep-every", value, &current_keep(rd)->pick.every);
}

static int parse_keep_rule(struct rules_reading *rd, char *value)
{
    return parse_rule_steps(rd, "keep", value, &current_keep(rd)->pick);
}

static int parse_full_every_rule(struct rules_reading *rd, char *value)
{
    return parse_rule_number(rd, "full-every", value, &current(rd)->full.every);
}

static int parse_full_rule(struct rules_reading *rd, char *value)
{
    return parse_rule_steps(rd, "full", value, &current(rd)->full);
}

static int parse_weights_every_rule(struct rules_reading *rd, char *value)
{
    return parse_rule_number(rd, "weights-every", value, &current(rd)->weights.every);
}

static int parse_weights_rule(struct rules_reading *rd, char *value)
{
    return parse_rule_steps(rd, "weights", value, &current(rd)->weights);
}

static int set_full_form(struct rules_reading *rd, enum backup_form form)
{
    if (current(rd)->full_form != FORM_WHOLE && current(rd)->full_form != form) {
        err_usage(rd->e, "%s: line %d: the place %s has both rules tar and pack; keep one of them",
                  rd->path, rd->line, current(rd)->path);
        return -1;
    }
    current(rd)->full_form = form;
    return 0;
}

static int parse_tar_rule(struct rules_reading *rd, char *value)
{
    (void)value;
    return set_full_form(rd, FORM_TAR);
}

static int parse_pack_rule(struct rules_reading *rd, char *value)
{
    (void)value;
    return set_full_form(rd, FORM_PACK);
}

bool rules_is_remote(const char *path)
{
    const char *colon = strchr(path, ':'), *slash = strchr(path, '/');

    return colon && (!slash || colon < slash);
}

static int parse_place_rule(struct rules_reading *rd, char *value)
{
    struct rules *r = rd->rules;
    char *folder = path_parent(rd->path);
    char *path = *value == '/' || rules_is_remote(value) ? xstrdup(value) : path_join(folder, value);

    free(folder);
    ARRAY_ROOM(r->place, r->cap_places, r->n_places + 1);
    r->place[r->n_places++] = (struct rules_place){ .path = path };
    for (int i = 0; i < r->n_places - 1; i++)
        if (strcmp(r->place[i].path, path) == 0) {
            err_usage(rd->e, "%s: line %d: the place %s was already named on an earlier line",
                      rd->path, rd->line, value);
            return -1;
        }
    return 0;
}

static const struct rule {
    const char *word;
    bool has_value, of_a_place;
    int (*take)(struct rules_reading *rd, char *value);
} rule_table[] = {
    { "keep-last", true, false, parse_keep_last_rule }, { "keep-every", true, false, parse_keep_every_rule },
    { "keep", true, false, parse_keep_rule }, { "place", true, false, parse_place_rule },
    { "full-every", true, true, parse_full_every_rule }, { "full", true, true, parse_full_rule },
    { "weights-every", true, true, parse_weights_every_rule }, { "weights", true, true, parse_weights_rule },
    { "tar", false, true, parse_tar_rule }, { "pack", false, true, parse_pack_rule },
};
enum { N_RULES = sizeof rule_table / sizeof *rule_table };

static int unknown(struct rules_reading *rd, const char *word)
{
    const char *words[N_RULES], *near;

    for (int i = 0; i < N_RULES; i++)
        words[i] = rule_table[i].word;
    near = parse_nearest(word, words, N_RULES);
    err_usage(rd->e, "%s: line %d: '%s' is not a rule%s%s%s", rd->path, rd->line, word, near ? "; did you mean '" : "",
              near ? near : "", near ? "'?" : "");
    return -1;
}

static int parse_backup_rule(struct rules_reading *rd, const char *word, char *value)
{
    for (int i = 0; i < N_RULES; i++) {
        const struct rule *rule = &rule_table[i];

        if (strcmp(rule->word, word) != 0)
            continue;
        if (rule->of_a_place && !current(rd))
            err_usage(rd->e, "%s: line %d: the rule '%s' applies to a place; write it below a line 'place PATH'",
                      rd->path, rd->line, word);
        else if (rule->has_value && !*value)
            err_usage(rd->e, "%s: line %d: the rule '%s' needs a value", rd->path, rd->line, word);
        else if (!rule->has_value && *value)
            err_usage(rd->e, "%s: line %d: the rule '%s' accepts no value, but has '%s'",
                      rd->path, rd->line, word, value);
        else
            return rule->take(rd, value);
        return -1;
    }
    return unknown(rd, word);
}

/*
 * Cut off the comment and the trailing blanks of the line. Returns a pointer to its first character that is not a
 * blank.
 */
static char *trim(char *line)
{
    size_t n;

    for (char *p = line; *p; p++)
        if (*p == '#' && (p == line || isspace((unsigned char)p[-1]))) {
            *p = '\0';
            break;
        }
    while (isspace((unsigned char)*line))
        line++;
    for (n = strlen(line); n && isspace((unsigned char)line[n - 1]); n--)
        line[n - 1] = '\0';
    return line;
}

int rules_read(struct rules *r, const char *path, struct err *e)
{
    struct rules_reading rd = { .rules = r, .path = path, .e = e };
    uint64_t size;
    char *text = file_slurp(path, RULES_MAX_BYTES, &size, e), *rest = text, *line;
    char nothing[1] = "";
    int rc = text ? 0 : -1;

    *r = (struct rules){0};
    while (rc == 0 && (line = strsep(&rest, "\n"))) {
        char *value = trim(line), *word;

        rd.line++;
        if (!*value)
            continue;
        word = strsep(&value, " \t");
        while (value && isspace((unsigned char)*value))
            value++;
        rc = parse_backup_rule(&rd, word, value ? value : nothing);
    }
    free(text);
    return rc;
}

void rules_free(struct rules *r)
{
    for (int i = 0; i < r->n_places; i++) {
        free(r->place[i].path);
        free(r->place[i].full.step);
        free(r->place[i].weights.step);
        free(r->place[i].keep.pick.step);
    }
    free(r->place);
    free(r->keep.pick.step);
    *r = (struct rules){0};
}

bool rules_picks(const struct rules_pick *p, int64_t step)
{
    if (p->every && step > 0 && step % p->every == 0)
        return true;
    for (int i = 0; i < p->n; i++)
        if (p->step[i] == step)
            return true;
    return false;
}
