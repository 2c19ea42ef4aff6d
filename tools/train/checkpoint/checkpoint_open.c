/*
 * checkpoint_open.c - choose the checkpoint to continue from, and read its contents
 *
 * The worst mistake would be to begin from scratch although there is a checkpoint: the loss would start at its initial
 * value, and the next save would overwrite `latest`. Therefore a folder counts as empty only if it contains no
 * checkpoint folder (tag). If there is a tag that no pointer file names, or a pointer file that names a missing tag,
 * the run stops.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/layout/layouts.h"
#include "tools/train/checkpoint/checkpoint_impl.h"
#include "tools/train/checkpoint/checkpoint_steps.h"

/* ---- pointer files ---- */

/*
 * Returns a text with the names of the checkpoints in a folder, such as "a, b". If there are many, only the first few
 * are named. *n receives the number of all checkpoints. Unfinished ones are ignored. The caller frees the text.
 */
static char *list_tag_names(const char *dir, int *n)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;
    struct strbuf sb = {0};

    *n = 0;
    while (d && (ent = readdir(d))) {
        char *path = path_join(dir, ent->d_name);

        if (ent->d_name[0] != '.' && !str_ends(ent->d_name, ".part") && !str_ends(ent->d_name, ".part.job") &&
            checkpoint_is_tag(path) && (*n)++ < 3)
            strbuf_addf(&sb, "%s%s", sb.len ? ", " : "", ent->d_name);
        free(path);
    }
    if (d)
        closedir(d);
    if (*n > 3)
        strbuf_addf(&sb, ", ...");
    return sb.buf ? sb.buf : xstrdup("");
}

/*
 * Detect a save that was killed after it had renamed the checkpoint folder and before it updated `latest`. In that case
 * the file latest.next names the checkpoint and the unfinished folder in which it was written, and the unfinished
 * folder no longer exists. Returns the name of the checkpoint, or NULL if no save was interrupted at this point.
 */
static char *interrupted_publish(const char *dir)
{
    char *next = path_join(dir, "latest.next"), *text, *tag = NULL, *nl;
    struct err ignored = {0};
    struct stat st;
    uint64_t len;

    text = file_slurp(next, 4096, &len, &ignored);
    nl = text ? strchr(text, '\n') : NULL;
    if (nl) {
        char *part, *whole;

        *nl = '\0';
        part = path_join(dir, nl + 1);
        whole = path_join(dir, text);
        if (stat(part, &st) < 0 && errno == ENOENT && checkpoint_is_tag(whole))
            tag = xstrdup(text);
        free(part);
        free(whole);
    }
    free(text);
    free(next);
    return tag;
}

/*
 * Returns true if latest.next was written after `latest`, or if there is no `latest`. If latest.next is older, the user
 * has written `latest` since then, and latest.next is ignored.
 */
static bool is_after_latest(const char *dir)
{
    char *next = path_join(dir, "latest.next"), *latest = path_join(dir, "latest");
    struct stat a, b;
    bool yes =
        stat(latest, &b) < 0 ||
        (stat(next, &a) == 0 && (a.st_mtim.tv_sec > b.st_mtim.tv_sec ||
                                 (a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec >= b.st_mtim.tv_nsec)));

    free(next);
    free(latest);
    return yes;
}

/* ---- --universal-checkpoint ---- */

static bool is_latest_newer(const char *dir, const char *latest, const char *universal)
{
    char *a = path_join(dir, "latest"), *b = path_join(dir, "latest_universal");
    int64_t x = checkpoint_tag_number(latest), y = checkpoint_tag_number(universal);
    struct stat sa, sb;
    bool newer;

    if (x >= 0 && y >= 0)
        newer = x > y;
    else
        newer = stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_mtime > sb.st_mtime;
    free(a);
    free(b);
    return newer;
}

static char *universal_tag(const struct checkpoint_from *from, struct err *e)
{
    char *tag = checkpoint_pointer(from->dir, "latest_universal", e), *latest = NULL;

    if (!tag && e->kind == ERR_NONE)
        err_data(e, from->dir, ERR_NO_BYTE, "--universal-checkpoint: there is no latest_universal; give --load the "
                 "folder of the run, where ds2universal writes it, or leave the option out (any topology loads without "
                 "it)");
    if (tag && !from->force)
        latest = checkpoint_pointer(from->dir, "latest", e);
    if (latest && is_latest_newer(from->dir, latest, tag)) {
        err_data(e, from->dir, ERR_NO_BYTE, "--universal-checkpoint: 'latest' (%s) is newer than 'latest_universal' "
                                            "(%s); leave the option out to resume from %s, or add --force to go back "
                                            "to %s", latest, tag, latest, tag);
    }
    free(latest);
    if (e->kind == ERR_NONE)
        return tag;
    free(tag);
    return NULL;
}

/* ---- choosing the tag ---- */

/* Returns the checkpoint of an interrupted save that is newer than the one that `latest` names, or NULL. */
static char *newer_than_latest(const char *dir, const char *latest)
{
    char *found = is_after_latest(dir) ? interrupted_publish(dir) : NULL;

    if (found && (!latest || checkpoint_tag_number(found) > checkpoint_tag_number(latest)))
        return found;
    free(found);
    return NULL;
}

int checkpoint_complete_publish(const char *dir, const char *tag, struct err *e)
{
    char *latest = checkpoint_pointer(dir, "latest", e), *path = path_join(dir, "latest");
    char *next = path_join(dir, "latest.next"), *found = e->kind == ERR_NONE ? newer_than_latest(dir, latest) : NULL;
    int rc = e->kind == ERR_NONE ? 0 : -1;

    if (found && strcmp(found, tag) == 0)
        rc = file_replace(path, tag, strlen(tag), e) < 0 ? -1 : 1;
    if (rc > 0)
        unlink(next);
    free(found);
    free(next);
    free(path);
    free(latest);
    return rc;
}

static char *plain_tag(const char *dir, struct report *notes, struct err *e)
{
    char *tag = checkpoint_pointer(dir, "latest", e), *found;
    int n;

    if (e->kind != ERR_NONE)
        return NULL;
    found = newer_than_latest(dir, tag);
    if (found) {
        report_add(notes, SEV_NOTE, "latest", dir, ERR_NO_BYTE, NULL,
                   "the last save was cut off before it wrote 'latest'; %s is complete and is used", found);
        free(tag);
        return found;
    }
    if (tag)
        return tag;
    found = list_tag_names(dir, &n);
    if (n)
        err_data(e, dir, ERR_NO_BYTE, "holds %s but no file 'latest': give --load %s/NAME, or run ckpt-edit latest %s "
                                      "NAME; "
                 "to begin from scratch use another folder", found, dir, dir);
    free(found);
    return NULL;
}

/* Returns true if the folder has only Megatron's own pointer file, which source_open() follows. */
static bool is_megatrons(const char *dir)
{
    char *its = path_join(dir, LATEST_ITERATION), *ours = path_join(dir, "latest");
    struct stat st;
    bool yes = stat(its, &st) == 0 && stat(ours, &st) < 0;

    free(its);
    free(ours);
    return yes;
}

static bool opens_whole(const char *path)
{
    struct report *r = report_new();
    struct err ignored = {0};
    struct source *s = source_open(path, &(struct source_opts){ .hf = true }, r, &ignored);
    const bool whole = s && report_count(r, SEV_ERROR) == 0;

    source_close(s);
    report_free(r);
    return whole;
}

/* Returns the name of the newest complete checkpoint in a folder, or NULL if it has none. The caller frees the name. */
static char *newest_whole_tag(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;
    char *newest = NULL;

    while (d && (ent = readdir(d))) {
        char *path = path_join(dir, ent->d_name);

        if (ent->d_name[0] != '.' && checkpoint_tag_length(ent->d_name) == strlen(ent->d_name) &&
            (!newest || checkpoint_tag_number(ent->d_name) > checkpoint_tag_number(newest)) && opens_whole(path)) {
            free(newest);
            newest = xstrdup(ent->d_name);
        }
        free(path);
    }
    if (d)
        closedir(d);
    return newest;
}

/* Set *e to the error that `latest` or `latest_universal` names a checkpoint that does not exist. */
static void refuse_pointer(const struct checkpoint_from *from, const char *tag, struct err *e)
{
    const char *dir = from->dir;
    char *whole = from->universal ? NULL : newest_whole_tag(dir);

    if (from->universal)
        err_data(e, dir, ERR_NO_BYTE, "'latest_universal' names '%s', which does not exist; convert a checkpoint with "
                 "ds2universal, or leave --universal-checkpoint out", tag);
    else if (whole)
        err_data(e, dir, ERR_NO_BYTE, "'latest' names '%s', which does not exist; the newest complete checkpoint is "
                 "%s: give --load %s/%s, or run ckpt-edit latest %s %s", tag, whole, dir, whole, dir, whole);
    else
        err_data(e, dir, ERR_NO_BYTE, "'latest' names '%s', which does not exist, and no global_step folder there is "
                 "complete: restore one from a backup (ckpt-backup restore)", tag);
    free(whole);
}

/* Returns the path of the checkpoint to open. Returns NULL without an error if there is no checkpoint. */
static char *choose_checkpoint_path(const struct checkpoint_from *from, struct report *notes, struct err *e)
{
    struct stat st;
    char *tag, *path;

    if (stat(from->dir, &st) < 0) {
        if (errno != ENOENT || from->universal)
            err_sys(e, from->dir, "cannot search for a checkpoint");
        return NULL;
    }
    if (!S_ISDIR(st.st_mode) || (!from->universal && (checkpoint_is_tag(from->dir) || is_megatrons(from->dir))))
        return xstrdup(from->dir);
    tag = from->universal ? universal_tag(from, e) : plain_tag(from->dir, notes, e);
    if (!tag)
        return NULL;
    path = path_join(from->dir, tag);
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
        refuse_pointer(from, tag, e);
        free(path);
        path = NULL;
    }
    free(tag);
    return path;
}

/* ---- names ---- */

/* Returns the lowest number of a block in the source's names, or -1 if no name has a block number. */
static int lowest_layer(const struct source *s)
{
    int lowest = -1;

    for (int i = 0; i < s->n_params; i++) {
        int layer;
        const struct param_row *row = param_find(s->param[i].name, &layer);

        if (row && row->role == ROLE_NORM1_W && (lowest < 0 || layer < lowest))
            lowest = layer;
    }
    return lowest;
}

bool checkpoint_same(const char *name, int first_layer, const struct stage_param *p)
{
    char a[128], b[128];
    int layer, unused;
    const char *kind = param_kind(name, &layer, a);

    return !strcmp(kind, param_kind(p->name, &unused, b)) && (p->block < 0 || layer - first_layer == p->block);
}

const struct param *checkpoint_find(const struct source *s, int first_layer, const struct stage_param *p)
{
    for (int i = 0; i < s->n_params; i++)
        if (checkpoint_same(s->param[i].name, first_layer, p))
            return &s->param[i];
    return NULL;
}

const struct param *checkpoint_bare(const struct checkpoint *c)
{
    for (int i = 0; i < c->src->n_params; i++)
        if (!c->src->param[i].state[STATE_EXP_AVG] || !c->src->param[i].state[STATE_EXP_AVG_SQ])
            return &c->src->param[i];
    return NULL;
}

/* ---- reading the contents ---- */

static double pickled_number(const struct pk *v, double otherwise)
{
    double x;

    return v && pk_as_double(v, &x) ? x : otherwise;
}

/* Returns the tree of some mp_rank file. The caller may use only entries that all mp_rank files have in common. */
static const struct pk *first_mp_root(const struct source *s)
{
    for (int i = 0; i < s->n_files; i++)
        if (str_starts(s->file[i].name, "mp_rank_") && s->file[i].pt)
            return pt_root(s->file[i].pt);
    return NULL;
}

static void read_schedule(struct checkpoint_schedule *c, const struct pk *d)
{
    const char *style = pk_as_str(pk_get(d, "decay_style"));

    /*
     * If the schedule decays over zero steps, the checkpoint was imported. No trainer has used this schedule, so its
     * zeros are not compared with the options.
     */
    c->present = d && !pk_is_none(d) && pk_get(d, "num_steps") && pk_int_or(pk_get(d, "decay_steps"), 0) > 0;
    c->max_lr = pickled_number(pk_get(d, "max_lr"), 0);
    c->min_lr = pickled_number(pk_get(d, "min_lr"), 0);
    c->warmup_steps = pk_int_or(pk_get(d, "warmup_steps"), 0);
    c->num_steps = pk_int_or(pk_get(d, "num_steps"), 0);
    c->decay_steps = pk_int_or(pk_get(d, "decay_steps"), 0);
    c->warmup_tokens = pk_int_or(pk_get(d, "warmup_tokens"), 0);
    c->num_tokens = pk_int_or(pk_get(d, "num_tokens"), 0);
    snprintf(c->decay_style, sizeof c->decay_style, "%s", style ? style : "");
}

static void read_group_settings(struct checkpoint_info *c, const struct source *s)
{
    const struct run_state *r = &s->run;
    const struct pk *settings;

    c->opt_step = r->opt_step;
    for (int g = 0; g < CHECKPOINT_GROUPS_MAX && (settings = optim_groups_settings(s, g)) != NULL; g++) {
        struct ds_settings *to = &c->group[c->n_groups++];

        *to = (struct ds_settings){ .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };        /* torch's defaults */
        optim_settings_number(settings, "lr", &to->lr);
        optim_settings_number(settings, "eps", &to->eps);
        optim_settings_number(settings, "weight_decay", &to->weight_decay);
        optim_settings_betas(settings, &to->beta1, &to->beta2);
    }
    c->has_clip_grad = pk_get(r->optimizer, "clip_grad") != NULL;
    c->clip_grad = pickled_number(pk_get(r->optimizer, "clip_grad"), 0);
}

static bool is_role(const char *name, enum role r)
{
    int layer;
    const struct param_row *row = name ? param_find(name, &layer) : NULL;

    return row && row->role == r;
}

/*
 * Returns the number of blocks that the mp_rank files of pipeline stage pp list. *norm is set to true if they also list
 * the final LayerNorm.
 */
static int count_stage_blocks(const struct source *s, int pp, bool *norm)
{
    const struct source_file *f = s->topo.tp > 0 ? ds_mp_file(s, pp, 0) : NULL;
    /* discarded, because errors of this file were reported when the checkpoint was opened */
    struct report *findings = report_new();
    struct ds_stage st = {0};
    int n = 0;

    *norm = false;
    if (f && ds_stage_read(&st, pk_get(pt_root(f->pt), "param_shapes"), 1, f->name, findings))
        for (int g = 0; g < st.n_groups; g++)
            for (int i = 0; i < st.group[g].n; i++) {
                n += is_role(st.group[g].slice[i].name, ROLE_NORM1_W);
                *norm |= is_role(st.group[g].slice[i].name, ROLE_FINAL_NORM_W);
            }
    ds_stage_free(&st);
    report_free(findings);
    return n;
}

/* Read the number of blocks of each stage from the lists in the mp_rank files. */
static void read_stage_blocks(struct checkpoint *c)
{
    const struct source *s = c->src;
    int *blocks = arena_alloc(c->arena, ((size_t)s->topo.pp + 1) * sizeof *blocks), norm = -1;

    for (int pp = 0; pp < s->topo.pp; pp++) {
        bool here;

        blocks[pp] = count_stage_blocks(s, pp, &here);
        norm = here ? pp : norm;
    }
    /*
     * A stage without blocks may have the embedding or the head. The final LayerNorm must be in a stage that has a
     * block.
     */
    for (int pp = 0; pp < s->topo.pp; pp++)
        if (!blocks[pp] && (pp == norm || (pp > 0 && pp < s->topo.pp - 1)))
            return;
    c->info.n_stages = s->topo.pp;
    c->info.blocks = blocks;
}

static void read_saved_states(struct checkpoint_info *c, const struct source *s)
{
    const struct pk *params_dtype = pk_get(s->run.args, "params_dtype");

    c->has_weights = c->has_optimizer = s->n_params > 0;
    c->weights = pk_is_class(params_dtype, "torch", "float32") ? DTYPE_F32
               : pk_is_class(params_dtype, "torch", "float16") ? DTYPE_F16 : DTYPE_BF16;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const struct tmap *flat = p->state[STATE_FP32];

        if (!p->state[STATE_BF16])
            c->has_weights = false;
        else
            c->weights = p->state[STATE_BF16]->dtype;
        if (!flat || !p->state[STATE_EXP_AVG] || !p->state[STATE_EXP_AVG_SQ])
            c->has_optimizer = false;
        if (!flat)
            flat = p->state[STATE_BF16];
        c->has_replicas = c->has_replicas || (flat && flat->op == TMAP_REPLICAS && flat->n_slices > 1);
    }
}

/*
 * Make the parameter group with the largest weight decay the first one. Other trainers list their groups in any order.
 */
static void decaying_first(struct checkpoint_info *c)
{
    for (int g = 1; g < c->n_groups; g++)
        if (c->group[g].weight_decay > c->group[0].weight_decay) {
            const struct ds_settings x = c->group[0];

            c->group[0] = c->group[g];
            c->group[g] = x;
        }
}

static void fill_info(struct checkpoint *c)
{
    const struct source *s = c->src;
    const struct pk *root = first_mp_root(s), *args = s->run.args;
    struct checkpoint_info *i = &c->info;

    i->path = s->path;
    i->tag = s->tag;
    i->topo = s->topo;
    i->model = s->config;
    i->iteration = s->run.iteration < 0 ? 0 : s->run.iteration;
    i->consumed_train_samples = s->run.consumed_samples < 0 ? 0 : s->run.consumed_samples;
    i->consumed_valid_samples = pk_int_or(pk_get(args, "consumed_valid_samples"), 0);
    i->consumed_tokens = s->run.consumed_tokens < 0 ? 0 : s->run.consumed_tokens;
    i->skipped_train_samples = pk_int_or(pk_get(args, "skipped_train_samples"), 0);
    i->skipped_train_iteration = pk_int_or(pk_get(args, "skipped_train_iteration"), 0);
    i->skipped_steps = pk_int_or(pk_get(root, "skipped_steps"), 0);
    i->gigaflos = pickled_number(pk_get(args, "gigaflos_no_embeds"), 0);
    i->args = args;
    i->epsilon = c->names.epsilon;
    i->ds_version = s->run.ds_version;
    i->has_rng = pk_get(root, "torch_rng_state") != NULL;
    read_schedule(&i->schedule, pk_get(root, "lr_scheduler"));
    read_group_settings(i, s);
    i->zero_stage_1 = source_has_zero1_optimizer(s);
    i->has_scaler = loss_scale_read(&i->scaler, pk_get(s->run.optimizer, "loss_scaler"));
    i->overflow = pk_int_or(pk_get(s->run.optimizer, "overflow"), 0) != 0;
    read_saved_states(i, s);
    if (c->names.names) {
        (void)source_states_dtype(s, &i->weights);
        i->has_scaler = i->has_scaler && i->weights == DTYPE_F16;
        decaying_first(i);
    } else {
        read_stage_blocks(c);
    }
}

/* Refuse checkpoints from which training cannot continue. */
static int check_trainable(const struct checkpoint *c, struct err *e)
{
    const struct source *s = c->src;
    const char *position = s->config.position;

    if (c->first_layer < 0) {
        err_data(e, s->path, ERR_NO_BYTE, "no transformer layer is in it");
        return -1;
    }
    if (*position && strcmp(position, "alibi") && strcmp(position, "absolute")) {
        err_data(e, s->path, ERR_NO_BYTE, "position embedding '%s': expected alibi or absolute", position);
        return -1;
    }
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].merge == MERGE_CAT0_HALVES || s->config.glu) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: gated MLPs (GLU) cannot be trained", s->param[i].name);
            return -1;
        }
    return 0;
}

/* ---- names of other programs ---- */

/* Translate the names of a checkpoint of another program, and determine the sizes of the model from them. */
static int translate_names(struct checkpoint *c, const struct checkpoint_from *from, struct report *notes,
                           struct err *e)
{
    struct source *s = c->src;

    if (source_one_model(s, e) < 0)
        return -1;
    if (!source_has_own_names(s))
        return 0;
    if (gpt_names_apply(s, from->heads, &c->names, e) < 0)
        return -1;
    /* a checkpoint of another trainer: its number of iterations refers to that trainer's batches */
    if (s->run.consumed_samples < 0)
        s->run.iteration = 0;
    report_add(notes, SEV_NOTE, "names", s->path, ERR_NO_BYTE, NULL, "%s checkpoint, names of %s: %s",
               source_layout_name(s), c->names.names, !source_has_moments(s) ? "weights alone are there"
               : checkpoint_bare(c) ? "some parameters have no moments" : "weights and Adam's moments are there");
    return 0;
}

/* ---- opening ---- */

char *checkpoint_chosen(const struct checkpoint_from *from, struct err *e)
{
    struct report *notes = report_new();
    char *path = choose_checkpoint_path(from, notes, e);

    report_free(notes);
    return path;
}

void checkpoint_latest(const char *dir, char *tag, size_t n)
{
    struct err ignored = {0};
    char *found = checkpoint_pointer(dir, "latest", &ignored);

    snprintf(tag, n, "%s", found ? found : "");
    free(found);
}

int checkpoint_open(const struct checkpoint_from *from, struct checkpoint **out, struct report *notes, struct err *e)
{
    struct source_opts so = { .threads = from->threads, .accept_mismatch = from->accept_mismatch, .model = from->model,
                              .hf = true };
    char *path = choose_checkpoint_path(from, notes, e);
    struct report *found = report_new();
    struct checkpoint *c = NULL;
    int rc = -1;

    *out = NULL;
    if (!path) {
        if (e->kind == ERR_NONE) {
            report_add(notes, SEV_WARNING, "no_checkpoint", from->dir, ERR_NO_BYTE, NULL,
                       "no checkpoint is there (no file 'latest'): training begins from scratch");
            rc = 0;
        }
        goto out;
    }
    c = xcalloc(1, sizeof *c);
    c->arena = arena_new(0);
    c->src = source_open(path, &so, found, e);
    if (c->src && !from->accept_mismatch)
        manifest_give_crcs(c->src);             /* called on all ranks, because all ranks must make the same plan */
    if (!c->src || checkpoint_check_findings(found, c->src->path, notes, e) < 0 ||
        translate_names(c, from, notes, e) < 0)
        goto out;
    c->first_layer = lowest_layer(c->src);
    if (check_trainable(c, e) < 0)
        goto out;
    fill_info(c);
    c->accept_mismatch = from->accept_mismatch;
    *out = c;
    rc = 1;
out:
    if (rc < 0)
        checkpoint_close(c);
    report_free(found);
    free(path);
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    source_close(c->src);
    arena_free(c->arena);
    free(c);
}

const struct checkpoint_info *checkpoint_info(const struct checkpoint *c)
{
    return &c->info;
}
