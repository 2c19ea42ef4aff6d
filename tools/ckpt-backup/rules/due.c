/*
 * due.c - find which copies are due, which exist, and which steps may be removed
 */
#include "tools/ckpt-backup/rules/due.h"

#include <stdlib.h>

#include "libcommon/base/mem.h"

/* FORM_NONE means that no copy is due. */
enum { FORM_NONE = FORM_N };

/* A list of steps, ascending and without duplicates. */
struct steps {
    int64_t *step;
    int n;
};

/*
 * The steps that keep-last counts in a place. A whole copy is counted in both lists, because it contains the weights. A
 * copy of only the weights is not counted in `whole`, so no number of them makes keep-last drop a whole copy.
 */
struct newest { struct steps any, whole; };

struct making {
    const struct rules *rules;
    const struct due_state *st;
    struct newest *stay;        /* [place]: the steps that it has, and those that are still to be copied to it */
    struct newest *sound;       /* [place]: the steps that it has as a verified copy */
    struct due_action *action;
    int n, cap;
};

/* ---- which copies are due, and which exist ---- */

/*
 * Return the form in which the rules of the place select the step. How long the place keeps the step is not considered.
 */
static enum backup_form picked_form(const struct rules_place *p, int64_t step)
{
    struct rules_pick named = p->keep.pick;

    /*
     * Without keep-every: that rule only applies to steps that the place already has. `keep STEP`, in contrast, also
     * requests a copy of the step.
     */
    named.every = 0;
    if (rules_picks(&p->full, step) || rules_picks(&named, step))
        return p->full_form;
    return rules_picks(&p->weights, step) ? FORM_WEIGHTS : (enum backup_form)FORM_NONE;
}

/* Returns true if the rules keep step `wanted`, if the steps in `of` exist. */
static bool kept(const struct rules_keep *k, struct steps of, int64_t wanted)
{
    if (!k->given || rules_picks(&k->pick, wanted))
        return true;
    for (int i = of.n - 1; i >= 0 && of.n - i <= k->last; i--)
        if (of.step[i] == wanted)
            return true;
    return false;
}

static bool kept_in_place(const struct rules_keep *k, const struct newest *of, int64_t wanted, enum backup_form form)
{
    return kept(k, form == FORM_WEIGHTS ? of->any : of->whole, wanted);
}

static enum backup_form due_form(const struct making *m, int place, int64_t step)
{
    const struct rules_place *p = &m->rules->place[place];
    enum backup_form form = picked_form(p, step);

    return kept_in_place(&p->keep, &m->stay[place], step, form) ? form : (enum backup_form)FORM_NONE;
}

static bool serves(const struct due_held *h, int64_t step, enum backup_form form)
{
    return h->step == step && (h->form != FORM_WEIGHTS || form == FORM_WEIGHTS);
}

static bool is_verified(const struct due_place *p, int64_t step, enum backup_form form)
{
    for (int i = 0; i < p->n_held; i++)
        if (p->held[i].verified && serves(&p->held[i], step, form))
            return true;
    return false;
}

static bool has_serving_copy(const struct due_place *p, int64_t step, enum backup_form form)
{
    for (int i = 0; i < p->n_held; i++)
        if ((p->held[i].verified || p->held[i].there) && serves(&p->held[i], step, form))
            return true;
    return false;
}

static bool is_finished(const struct due_state *st, int64_t step)
{
    return st->latest < 0 || step <= st->latest;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void sort_steps(struct steps *s)
{
    int n = 0;

    qsort(s->step, (size_t)s->n, sizeof *s->step, by_step);
    for (int i = 0; i < s->n; i++)
        if (n == 0 || s->step[n - 1] != s->step[i])
            s->step[n++] = s->step[i];
    s->n = n;
}

static void add_newest_step(struct newest *c, int64_t step, enum backup_form form)
{
    c->any.step[c->any.n++] = step;
    if (form != FORM_WEIGHTS)
        c->whole.step[c->whole.n++] = step;
}

static void newest_make(struct newest *c, int most)
{
    c->any.step = xcalloc((size_t)most + 1, sizeof *c->any.step);
    c->whole.step = xcalloc((size_t)most + 1, sizeof *c->whole.step);
}

static void newest_sort(struct newest *c)
{
    sort_steps(&c->any);
    sort_steps(&c->whole);
}

static void newest_free(struct newest *c)
{
    free(c->any.step);
    free(c->whole.step);
}

/*
 * Fill in two lists for the place. m->stay[place] gets the steps that the place has and the steps that its rules still
 * require to be copied to it. m->sound[place] gets the steps that it has as a verified copy.
 */
static void list_steps(struct making *m, int place)
{
    const struct due_place *p = &m->st->place[place];
    struct newest *stay = &m->stay[place], *sound = &m->sound[place];

    newest_make(stay, p->n_held + m->st->n_steps);
    newest_make(sound, p->n_held);
    for (int i = 0; i < p->n_held; i++) {
        add_newest_step(stay, p->held[i].step, p->held[i].form);
        if (p->held[i].verified)
            add_newest_step(sound, p->held[i].step, p->held[i].form);
    }
    for (int i = 0; i < m->st->n_steps; i++) {
        enum backup_form form = picked_form(&m->rules->place[place], m->st->step[i]);

        if (form != (enum backup_form)FORM_NONE)
            add_newest_step(stay, m->st->step[i], form);
    }
    newest_sort(stay);
    newest_sort(sound);
}

/* ---- actions ---- */

static void add_due_action(struct making *m, struct due_action a)
{
    ARRAY_ROOM(m->action, m->cap, m->n + 1);
    m->action[m->n++] = a;
}

static void add_due_copies(struct making *m, int64_t step)
{
    for (int p = 0; p < m->rules->n_places; p++) {
        enum backup_form form = due_form(m, p, step);

        if (form != (enum backup_form)FORM_NONE && m->st->place[p].known &&
            !has_serving_copy(&m->st->place[p], step, form))
            add_due_action(m, (struct due_action){ DUE_COPY, step, p, DUE_RUN, form });
    }
}

/*
 * a.place need not keep this step. If all other places that should have the step have it, add the action DUE_FORGET.
 * Otherwise add DUE_WAIT for the first place that does not have it.
 */
static void add_forget(struct making *m, struct due_action a)
{
    a.verb = DUE_FORGET;
    a.for_place = DUE_RUN;
    for (int p = 0; p < m->rules->n_places && a.verb == DUE_FORGET; p++) {
        const struct due_place *held = &m->st->place[p];
        enum backup_form form = due_form(m, p, a.step);

        if (p == a.place)
            continue;
        if (!held->known || (form != (enum backup_form)FORM_NONE && !is_verified(held, a.step, form))) {
            a.verb = DUE_WAIT;
            a.for_place = p;
        }
    }
    add_due_action(m, a);
}

static void forget_in_run(struct making *m)
{
    const struct due_state *st = m->st;
    struct steps finished = {0};

    if (st->latest < 0)
        /*
         * Remove nothing in this case: the newest step may be incomplete, and the one before it may be the last good
         * one.
         */
        return;
    finished.step = xcalloc((size_t)st->n_steps + 1, sizeof *finished.step);
    /* A step that is still being written is not counted among the newest. */
    for (int i = 0; i < st->n_steps && is_finished(st, st->step[i]); i++)
        finished.step[finished.n++] = st->step[i];
    for (int i = 0; i < finished.n; i++)
        if (st->step[i] != st->latest && !kept(&m->rules->keep, finished, st->step[i]))
            add_forget(m, (struct due_action){ .step = st->step[i], .place = DUE_RUN, .form = FORM_WHOLE });
    free(finished.step);
}

/*
 * Add the removals from a place. A step that is among the newest verified ones is kept until newer steps have been
 * verified, because a copy that has not been made yet may fail.
 */
static void forget_in_place(struct making *m, int place)
{
    const struct due_place *p = &m->st->place[place];
    const struct rules_keep *k = &m->rules->place[place].keep;

    for (int i = 0; i < p->n_held; i++) {
        struct due_action a = { DUE_WAIT, p->held[i].step, place, place, p->held[i].form };

        if (kept_in_place(k, &m->stay[place], a.step, a.form))
            continue;
        if (kept_in_place(k, &m->sound[place], a.step, a.form))
            add_due_action(m, a);
        else
            add_forget(m, a);
    }
}

int due_make(const struct rules *r, const struct due_state *st, struct due_action **out)
{
    struct making m = { .rules = r, .st = st };

    m.stay = xcalloc((size_t)r->n_places + 1, sizeof *m.stay);
    m.sound = xcalloc((size_t)r->n_places + 1, sizeof *m.sound);
    for (int p = 0; p < r->n_places; p++)
        list_steps(&m, p);
    for (int i = 0; i < st->n_steps; i++)
        add_due_copies(&m, st->step[i]);
    forget_in_run(&m);
    for (int p = 0; p < r->n_places; p++)
        if (st->place[p].known)
            forget_in_place(&m, p);
    for (int p = 0; p < r->n_places; p++) {
        newest_free(&m.stay[p]);
        newest_free(&m.sound[p]);
    }
    free(m.stay);
    free(m.sound);
    *out = m.action;
    return m.n;
}
