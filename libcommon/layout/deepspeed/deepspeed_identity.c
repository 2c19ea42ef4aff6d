/*
 * deepspeed_identity.c - check that all files are of one save, and that each file is the one that its name indicates
 *
 * The names inside a .pt archive contain the rank for which it was saved (ds_name_check()): if the file of tensor rank
 * 2 is renamed to rank 3, the inner name still has 2. The inner name gives no information if DeepSpeed before 0.7
 * saved a shard through an open file (the name is "archive"), or if it is not the name of any rank. mp_rank files also
 * record their rank in args.rank.
 * A folder can contain files of two saves, if a save was interrupted while it overwrote an older one of the same name.
 * Iteration, optimizer step and versions are therefore read from every file and must be equal in all. If they differ,
 * the value that most files have is assumed to be right.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/deepspeed/deepspeed.h"

enum severity ds_mismatch(const struct ds *d)
{
    return d->o->accept_mismatch ? SEV_WARNING : SEV_ERROR;
}

/* ---- args.rank ---- */

/* Return the global rank of the process that wrote mp_rank file `mp`, which is the process of data-parallel rank 0. */
static int64_t rank_of_mp(struct topology t, int mp)
{
    return (int64_t)(mp / t.tp) * t.dp * t.tp + mp % t.tp;
}

static bool read_saved_rank(const struct ds *d, int mp, int64_t *rank)
{
    int file = d->mp_file[mp];
    const struct pt *pt = file < 0 ? NULL : d->s->file[file].pt;

    return pt && pk_as_int(pk_get(pk_get(pt_root(pt), "args"), "rank"), rank);
}

/*
 * Returns true if args.rank of the mp_rank files can be compared with their names. Converters of third parties may
 * leave any number in args.rank. The numbers are therefore used only if each of these is the rank of a file in this
 * grid, and if they are not all equal.
 */
static bool ranks_are_kept(const struct ds *d)
{
    int n_mp = d->topo.tp * d->topo.pp;
    int64_t rank, first = -1;
    bool differ = false;

    for (int mp = 0; mp < n_mp; mp++) {
        if (!read_saved_rank(d, mp, &rank))
            continue;
        if (rank < 0 || rank >= (int64_t)n_mp * d->topo.dp || rank / d->topo.tp % d->topo.dp != 0)
            return false;
        differ |= first >= 0 && rank != first;
        first = rank;
    }
    return differ;
}

void ds_check_ranks(struct ds *d)
{
    if (!ranks_are_kept(d))
        return;
    for (int mp = 0; mp < d->topo.tp * d->topo.pp; mp++) {
        int64_t rank, want = rank_of_mp(d->topo, mp);

        if (read_saved_rank(d, mp, &rank) && rank != want)
            report_add(d->r, ds_mismatch(d), "other_rank", files_name(d->s->files, d->s->file[d->mp_file[mp]].file),
                       ERR_NO_BYTE, NULL, "has args.rank %lld, but rank %lld in its name: it belongs to another rank",
                       (long long)rank, (long long)want);
    }
}

/* ---- values that all files of a save share ---- */

/*
 * Return the name of value m (enum ds_mark) for messages, such as "iteration" or "args.seed". The name is a constant
 * or is written into buf.
 */
static const char *mark_word(int m, char buf[64])
{
    if (m < DS_SHARED)
        return m == DS_STEP ? "optimizer step" : "optimizer learning rate";
    return run_shared_name(m - DS_SHARED, buf);
}

char *ds_mark_text(const struct pk *v)
{
    struct strbuf sb = {0};
    double x;

    if (pk_is_none(v))
        return NULL;
    if (pk_as_double(v, &x))
        return str_fmt("%.17g", x);
    if (pk_as_str(v))
        return str_fmt("%.63s", pk_as_str(v));
    pk_text(v, &sb);
    return sb.buf;
}

void ds_read_marks(const struct ds_job *j)
{
    const struct pk *root = pt_root(j->pt);

    for (int m = DS_SHARED; m < DS_MARKS; m++)
        j->d->mark[j->file][m] = ds_mark_text(run_shared_get(root, m - DS_SHARED));
    if (j->d->name[j->file].kind == DS_MP)
        j->d->mark[j->file][DS_VALUES] = run_values_text(root);
}

struct marked {
    const char *text;
    int file;
};

static int by_marked_text(const void *a, const void *b)
{
    return strcmp(((const struct marked *)a)->text, ((const struct marked *)b)->text);
}

/* Sorts the n entries of v by text. Returns the most frequent text. */
static const char *most_common(struct marked *v, int n)
{
    const char *best = NULL;
    int most = 0;

    qsort(v, (size_t)n, sizeof *v, by_marked_text);
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && strcmp(v[end].text, v[i].text) == 0; end++)
            ;
        if (end - i > most) {
            most = end - i;
            best = v[i].text;
        }
    }
    return best;
}

/*
 * Returns true if the mp_rank file lacks value m, and other mp_rank files have it (n_mp > 0). A shard is never
 * reported, because shards do not have all values.
 */
static bool lacks(const struct ds *d, int m, int file, int n_mp)
{
    return m >= DS_SHARED && n_mp > 0 && d->name[file].kind == DS_MP && !d->mark[file][m] && d->s->file[file].pt;
}

/*
 * Compare value m in all files that have it. For each file only the first difference is reported, because a file of
 * another save differs in many values.
 */
static void check_mark(struct ds *d, int m, struct marked *v, bool *reported)
{
    const char *usual;
    char buf[64];
    int n = 0, n_mp = 0;

    for (int i = 0; i < d->n_files; i++)
        if (d->mark[i][m]) {
            n_mp += d->name[i].kind == DS_MP;
            v[n++] = (struct marked){ d->mark[i][m], i };
        }
    usual = most_common(v, n);
    for (int i = 0; usual && i < d->n_files; i++) {
        if (reported[i] || (d->mark[i][m] ? strcmp(d->mark[i][m], usual) == 0 : !lacks(d, m, i, n_mp)))
            continue;
        report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[i].file), ERR_NO_BYTE, NULL,
                   "%s %s, others %s: the checkpoint mixes two saves", mark_word(m, buf),
                   d->mark[i][m] ? d->mark[i][m] : "is not there", usual);
        reported[i] = true;
    }
}

/*
 * Compare the optimizer settings of all files of each pipeline stage. All ranks of a stage have the same groups, so
 * their settings must be equal.
 */
static void check_settings(struct ds *d, bool *reported)
{
    char mine[160], firsts[160];

    for (int pp = 0; pp < d->topo.pp; pp++) {
        const char *first = NULL;

        for (int i = 0; i < d->n_files; i++) {
            const char *text = d->s->file[i].pp == pp ? d->mark[i][DS_SETTINGS] : NULL;

            first = first ? first : text;
            if (reported[i] || !text || !adam_settings_differ(text, first, mine, firsts))
                continue;
            report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[i].file), ERR_NO_BYTE,
                       NULL, "the optimizer's %s, another rank of its stage has %s: the checkpoint mixes two saves",
                       *mine ? mine : "setting is missing", *firsts ? firsts : "none");
            reported[i] = true;
        }
    }
}

/* Compare the settings of each stage with those of the first stage, because one optimizer trains all stages. */
static void check_stage_settings(struct ds *d, bool *reported)
{
    const char *first = NULL;
    char mine[160], firsts[160];

    for (int pp = 0; pp < d->topo.pp; pp++)
        for (int i = 0; i < d->n_files; i++) {
            const char *text = d->s->file[i].pp == pp ? d->mark[i][DS_SETTINGS] : NULL;

            if (!text)
                continue;
            if (first && !reported[i] && adam_stage_settings_differ(text, first, mine, firsts)) {
                report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[i].file),
                           ERR_NO_BYTE, NULL, "the optimizer's %s, another pipeline stage has %s", mine, firsts);
                reported[i] = true;
            }
            first = first ? first : text;
            break;                      /* check_settings() compares the files of one stage */
        }
}

/* ---- weight decay of stages ---- */

/* The weight decay of one kind of parameter, such as "mlp.dense_4h_to_h.weight" of any layer. */
struct kind_decay {
    const char *name;                   /* the first parameter of the kind that was read */
    const char *value;                  /* its weight decay, ended by a newline */
    int pp;
    bool varies;                        /* true: differs within a stage, so stages are not compared */
};
struct kind_table {
    struct names *names;                /* kind: index in kind */
    struct kind_decay *kind;
    size_t cap;
};

/* Returns a parameter's name without its layer number. */
static const char *kind_of(const char *name)
{
    const size_t digits = strspn(name, "0123456789");

    return digits > 0 && name[digits] == '.' ? name + digits + 1 : name;
}

/*
 * Returns the weight decay of group g in a text made by adam_settings(), or NULL if there is none. A newline ends it.
 */
static const char *find_decay(const char *settings, int g)
{
    char key[64];
    const char *at;

    snprintf(key, sizeof key, "param_groups.%d.weight_decay ", g);
    for (at = settings; at && !str_starts(at, key); at = at ? at + 1 : NULL)
        at = strchr(at, '\n');
    return at ? at + strlen(key) : NULL;
}

static bool is_same_line(const char *a, const char *b)
{
    const size_t n = strcspn(a, "\n");

    return n == strcspn(b, "\n") && memcmp(a, b, n) == 0;
}

/*
 * Compare the weight decay of a parameter of stage pp with that of the same kind of parameter in other stages. Returns
 * true if a difference was reported.
 */
static bool compare_decay(struct ds *d, struct kind_table *t, int file, const char *name, const char *value)
{
    const int pp = d->s->file[file].pp, i = names_find(t->names, kind_of(name));

    if (i < 0) {
        ARRAY_ROOM(t->kind, t->cap, (size_t)names_n(t->names) + 1);
        t->kind[names_n(t->names)] = (struct kind_decay){ name, value, pp, false };
        names_add(t->names, kind_of(name), names_n(t->names));
    } else if (t->kind[i].pp == pp) {
        t->kind[i].varies |= !is_same_line(t->kind[i].value, value);
    } else if (!t->kind[i].varies && !is_same_line(t->kind[i].value, value)) {
        report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[file].file), ERR_NO_BYTE,
                   name, "is in a group with weight_decay %.*s, %.100s of another pipeline stage has %.*s",
                   (int)strcspn(value, "\n"), value, t->kind[i].name, (int)strcspn(t->kind[i].value, "\n"),
                   t->kind[i].value);
        return true;
    }
    return false;
}

/*
 * Compare the weight decay of each kind of parameter in all stages. Groups are not compared by number, because stages
 * may list their groups in different orders.
 */
static void check_stage_decay(struct ds *d, bool *reported)
{
    struct arena *a = arena_new(0);
    struct kind_table t = { .names = names_new(a) };

    for (int pp = 0; pp < d->topo.pp; pp++) {
        const struct ds_stage *stage = d->ref[pp];
        int i = 0;
        bool differs = false;

        while (i < d->n_files && (d->s->file[i].pp != pp || !d->mark[i][DS_SETTINGS]))
            i++;
        for (int g = 0; stage && i < d->n_files && g < stage->n_groups && !differs && !reported[i]; g++) {
            const char *value = find_decay(d->mark[i][DS_SETTINGS], g);

            for (int k = 0; value && k < stage->group[g].n && !differs; k++)
                differs = compare_decay(d, &t, i, stage->group[g].slice[k].name, value);
        }
        if (differs)
            reported[i] = true;
    }
    free(t.kind);
    arena_free(a);
}

/* Check that either all files of the optimizer have its step or none does. */
static void check_steps_there(struct ds *d, bool *reported)
{
    int with = -1;

    for (int i = 0; i < d->n_files; i++)
        with = d->mark[i][DS_STEP] ? i : with;
    for (int i = 0; i < d->n_files && with >= 0; i++)
        if (d->mark[i][DS_SETTINGS] && !d->mark[i][DS_STEP] && !reported[i]) {
            report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[i].file), ERR_NO_BYTE,
                       NULL, "has no step of the optimizer, %s has one",
                       files_name(d->s->files, d->s->file[with].file));
            reported[i] = true;
        }
}

/* Check values that every mp_rank file of a save has: either all mp_rank files have them or none does. */
static void check_keys_there(struct ds *d, bool *reported)
{
    static const char *const keys[] = { "checkpoint_info", "random_rng_state", "np_rng_state", "torch_rng_state",
                                        "cuda_rng_state", "rng_tracker_states" };

    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        int with = -1;

        for (int i = 0; i < d->n_files; i++)
            if (d->name[i].kind == DS_MP && d->s->file[i].pt && pk_get(pt_root(d->s->file[i].pt), keys[k]))
                with = i;
        for (int i = 0; i < d->n_files && with >= 0; i++) {
            if (d->name[i].kind != DS_MP || !d->s->file[i].pt || reported[i] ||
                pk_get(pt_root(d->s->file[i].pt), keys[k]))
                continue;
            report_add(d->r, ds_mismatch(d), "missing_key", files_name(d->s->files, d->s->file[i].file), ERR_NO_BYTE,
                       NULL, "has no %s, %s has it", keys[k], files_name(d->s->files, d->s->file[with].file));
            reported[i] = true;
        }
    }
}

/* Compare the training program's own tensors in the mp_rank files with those in the first file. */
static void check_client_tensors(const struct ds *d)
{
    const struct source_file *first = ds_first_mp(d);

    for (int i = 0; i < d->n_files && first && first->pt; i++) {
        const struct source_file *f = &d->s->file[i];
        const struct run_client c = { first->pt, f->pt, d->s->files, d->s->files, ds_mismatch(d), d->r };

        if (d->name[i].kind == DS_MP && f->pt && f != first)
            run_state_compare_client(&c);
    }
}

/* Compare all other values of the arguments and the schedule. */
static void check_values(struct ds *d, struct marked *v, bool *reported)
{
    const char *usual;
    char what[512];
    int n = 0;

    for (int i = 0; i < d->n_files; i++)
        if (d->mark[i][DS_VALUES])
            v[n++] = (struct marked){ d->mark[i][DS_VALUES], i };
    usual = most_common(v, n);
    for (int i = 0; usual && i < d->n_files; i++) {
        if (reported[i] || !d->mark[i][DS_VALUES] || !run_values_differ(d->mark[i][DS_VALUES], usual, what))
            continue;
        report_add(d->r, ds_mismatch(d), "mixed_saves", files_name(d->s->files, d->s->file[i].file), ERR_NO_BYTE, NULL,
                   "%s: the checkpoint mixes two saves", what);
        reported[i] = true;
    }
}

void ds_check_marks(struct ds *d)
{
    struct marked *v = xmalloc((size_t)d->n_files * sizeof *v);
    bool *reported = xcalloc((size_t)d->n_files, sizeof *reported);

    for (int m = DS_SHARED; m < DS_MARKS; m++)
        check_mark(d, m, v, reported);
    for (int m = 0; m < DS_SHARED; m++)
        check_mark(d, m, v, reported);
    check_values(d, v, reported);
    check_settings(d, reported);
    check_stage_settings(d, reported);
    check_stage_decay(d, reported);
    check_steps_there(d, reported);
    check_keys_there(d, reported);
    check_client_tensors(d);
    free(reported);
    free(v);
}
