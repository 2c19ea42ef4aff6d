/*
 * savedir.c - check the folder of --save, and set aside checkpoints in it that conflict with the run
 *
 * Whether a checkpoint can be saved is tested before the first step, because a failure would otherwise appear only
 * after hours. The number of free bytes and inodes is checked. On every host, all file operations of a save are also
 * tried: create a folder and a file in it, write, sync, rename both, and remove them.
 */
#include "tools/train/run/savedir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/progress.h"
#include "libcommon/layout/layouts.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/checkpoint/checkpoint_steps.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

/* ---- free space ---- */

/*
 * Get the statistics of the file system that contains `path`. If `path` does not exist, its nearest existing parent
 * folder is used instead. Returns false if there are no statistics.
 */
static bool get_fs_stats(const char *path, struct statvfs *fs)
{
    char *dir = xstrdup(path);
    bool known;

    while (!(known = statvfs(dir, fs) == 0)) {
        char *up = path_parent(dir);
        bool top = !strcmp(up, dir);

        free(dir);
        dir = up;
        if (top)
            break;
    }
    free(dir);
    return known;
}

/*
 * Returns the number of files and folders of a save: layer files of every tensor rank, shards of every rank, mp_rank
 * files, and the folders and pointer files.
 */
static uint64_t files_of_a_save(const struct trainer *t)
{
    const struct run_ranks *r = &t->ranks;
    const uint64_t mp = (uint64_t)r->topo.tp * (uint64_t)r->topo.pp;

    return (uint64_t)(t->shape.config.n_layers + 4) * (uint64_t)r->topo.tp + mp * (uint64_t)r->topo.dp + mp + 8;
}

static int check_room(const struct trainer *t, struct err *e)
{
    const uint64_t need = schedule_checkpoint_bytes((uint64_t)model_n_params(&t->shape.config));
    const uint64_t n = files_of_a_save(t);
    struct statvfs fs;
    char a[16], b[16];

    if (!get_fs_stats(t->o.save, &fs))
        return 0;
    if ((uint64_t)fs.f_bavail * fs.f_frsize < need) {
        err_usage(e, "%s: %s free, a checkpoint needs %s", t->o.save,
                  bytes_text((uint64_t)fs.f_bavail * fs.f_frsize, a), bytes_text(need, b));
        return -1;
    }
    /* Some file systems do not count inodes. */
    if (fs.f_files && fs.f_favail < n) {
        err_usage(e, "%s: %llu inodes free, a checkpoint has %llu files", t->o.save, (unsigned long long)fs.f_favail,
                  (unsigned long long)n);
        return -1;
    }
    return 0;
}

/* ---- trial save ---- */

static int write_block(const char *path, struct err *e)
{
    static const char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = -1;

    if (fd < 0)
        err_sys(e, path, "cannot create");
    else if (write_all_at(fd, block, sizeof block, 0) < 0)
        err_sys(e, path, "cannot write");
    else if (fsync(fd) < 0)
        err_sys(e, path, "cannot sync");
    else
        rc = 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int try_rename(const char *from, const char *to, struct err *e)
{
    if (rename(from, to) == 0)
        return 0;
    err_sys(e, to, "cannot rename from %s", from);
    return -1;
}

/*
 * Try the file operations of a save. The files get names of an unfinished save, so that the next run removes the files
 * if this process is killed.
 */
static int try_save_operations(const struct trainer *t, struct err *e)
{
    char *was = str_fmt("%s/global_step0.%08x.part", t->o.save, (unsigned)t->ranks.place->rank);
    char *is = str_fmt("%s/global_step0.f%07x.part", t->o.save, (unsigned)t->ranks.place->rank);
    char *file = path_join(was, "mp_rank_00_model_states.pt"), *moved = path_join(was, "mp_rank_01_model_states.pt");
    struct err ignored = {0};
    int rc = dir_make(was, e);

    if (rc == 0)
        rc = write_block(file, e);
    if (rc == 0)
        rc = try_rename(file, moved, e);
    if (rc == 0)
        rc = try_rename(was, is, e);
    if (rc == 0)
        rc = dir_sync(is, e);
    if (rc == 0)
        rc = dir_remove(is, e);
    else if (dir_remove(was, &ignored) < 0)
        (void)!dir_remove(is, &ignored);
    free(moved);
    free(file);
    free(is);
    free(was);
    return rc;
}

int savedir_check(struct trainer *t, struct err *e)
{
    const struct run_ranks *r = &t->ranks;
    struct err why = {0};
    int rc;

    if (!t->o.save)
        return 0;
    rc = check_room(t, e);
    if (rc == 0 && !t->o.dry_run && r->place->local_rank == 0 && try_save_operations(t, &why) < 0) {
        err_data(e, "--save", ERR_NO_BYTE, "no checkpoint can be saved from host %s: %s", r->place->host, why.msg);
        rc = -1;
    }
    return run_ranks_agree(&t->ranks, &t->failure, rc, e);
}

/* ---- the checkpoints in the folder ---- */

/* The state from which a run begins. */
struct run_start {
    const char *path;           /* path of the checkpoint; NULL: the run begins with initial weights */
    int64_t iteration;
};

/*
 * What is done with the checkpoints in the folder of --save. Rank 0 decides, and broadcasts this struct to all ranks.
 */
struct decision {
    struct saving_moves moves;
    bool stands;                /* the folder has a checkpoint of the iteration from which the run begins */
    struct err err;
};

static bool is_saved_folder(char *path)
{
    struct stat st;
    const bool is = stat(path, &st) == 0 && S_ISDIR(st.st_mode);

    free(path);
    return is;
}

static bool writes_checkpoints(const struct trainer *t)
{
    return t->o.save && !t->o.preflight && !t->o.eval_only && !t->o.dump_logits;
}

/* Returns true if the loaded checkpoint is in the folder of --save. */
static bool is_in_save(const struct trainer *t, const struct run_start *b)
{
    char *parent = path_parent(b->path);
    const bool yes = path_same(parent, t->o.save);

    free(parent);
    return yes;
}

/*
 * Returns the beginning of a suggestion for an error message: "give --load ckpt to go on from it, or " if the run could
 * continue from the newest checkpoint of the folder, else "give ". The caller frees the text.
 */
static char *way_to_go_on(const struct trainer *t, const struct checkpoint_steps *s)
{
    struct err ignored = {0};
    char *chosen = checkpoint_chosen(&(struct checkpoint_from){ .dir = t->o.save }, &ignored);
    char *newest = path_join(t->o.save, s->name);
    const bool tag = layout_of_folder(newest) != NULL;      /* false for a folder that a killed save has left empty */
    char *way;

    free(newest);
    if (chosen && layout_of_folder(chosen) && !s->itself)
        way = str_fmt("%sgive --load %s to resume from it, or ", t->o.finetune ? "leave --finetune out and " : "",
                      t->o.save);
    else if (tag && s->n)
        way = str_fmt("%sgive --load %s/%s to resume from it, or ",
                      t->o.finetune ? "leave --finetune out and " : "", t->o.save, s->name);
    else
        way = xstrdup("give ");
    free(chosen);
    return way;
}

static int refuse_save_folder(const struct trainer *t, const struct run_start *b, const struct checkpoint_steps *s,
                              struct err *e)
{
    char *way = way_to_go_on(t, s), *latest = NULL, *why;
    struct err ignored = {0};
    bool older;

    latest = checkpoint_pointer(t->o.save, "latest", &ignored);
    older = latest && strcmp(latest, s->name);
    if (!b->path)
        why = t->o.load ? str_fmt("--load %s holds no checkpoint", t->o.load) : xstrdup("no --load is given");
    else
        why = str_fmt("the run would begin at iteration %lld%s%s", (long long)b->iteration,
                      t->o.finetune ? " (--finetune)" : " of ", t->o.finetune ? "" : b->path);
    if (!s->n)
        err_usage(e, "--save %s is a checkpoint itself, and %s: save into another folder", t->o.save, why);
    else
        err_usage(e, "--save %s holds %s%s%s%s, and %s: %s--new-run to start a new run here (the checkpoints are moved "
                     "to %s/set-aside-TIME)", t->o.save, s->name, older ? " ('latest' names " : "", older ? latest : "",
                  older ? ")" : "", why, way, t->o.save);
    free(way);
    free(latest);
    free(why);
    return -1;
}

static int decide_moves(const struct trainer *t, const struct run_start *b, struct saving_moves *moves, struct err *e)
{
    const bool here = b->path && !t->o.finetune && is_in_save(t, b);
    struct checkpoint_steps s;

    if (checkpoint_steps_find(t->o.save, &s, e) < 0)
        return -1;
    if (t->o.new_run && here) {
        err_usage(e, "--new-run and --load %s exclude each other: it is in the folder of --save; leave --new-run out "
                     "to resume from it (newer checkpoints are moved aside), or add --finetune", t->o.load);
        return -1;
    }
    if (!s.n && !(s.itself && !b->path && !t->o.new_run))
        return 0;
    if (!t->o.new_run && !here && (!b->path || s.newest > b->iteration))
        return refuse_save_folder(t, b, &s, e);
    if (t->o.new_run || s.newest > b->iteration) {
        *moves = (struct saving_moves){ .due = true, .after = t->o.new_run ? -1 : b->iteration };
        snprintf(moves->newest, sizeof moves->newest, "%s", s.name);
        if (here) {
            char *base = path_base(b->path);

            snprintf(moves->tag, sizeof moves->tag, "%s", base);
            free(base);
        }
    }
    return 0;
}

int savedir_check_steps_early(const struct trainer *t, struct err *e)
{
    const struct checkpoint_from from = { .dir = t->o.load, .universal = t->o.universal_checkpoint,
                                          .force = t->o.force };
    struct saving_moves unused = {0};
    struct run_start b = {0};
    struct err later = {0};
    char *path, *name;
    int rc = 0;

    if (!writes_checkpoints(t))
        return 0;
    path = t->o.load ? checkpoint_chosen(&from, &later) : NULL;
    if (later.kind != ERR_NONE)         /* the error will be reported when the checkpoint is opened */
        return 0;
    if (path) {
        name = path_base(path);
        b = (struct run_start){ path, t->o.finetune ? 0 : checkpoint_tag_number(name) };
        /* The name of a checkpoint of another program may not contain the iteration. */
        if (t->o.finetune || checkpoint_tag_length(name))
            rc = decide_moves(t, &b, &unused, e);
        free(name);
    } else {
        rc = decide_moves(t, &b, &unused, e);
    }
    free(path);
    return rc;
}

static int decide_and_print_moves(struct trainer *t, struct decision *d, struct err *e)
{
    const struct checkpoint_info *f = t->from ? checkpoint_info(t->from) : NULL;
    const struct run_start b = { f ? f->path : NULL, f && !t->o.finetune ? f->iteration : 0 };

    if (decide_moves(t, &b, &d->moves, e) < 0)
        return -1;
    d->stands = f && !d->moves.due && is_saved_folder(str_fmt("%s/global_step%lld", t->o.save, (long long)b.iteration));
    if (d->moves.due && t->o.new_run)
        show_line(&t->log,
                  "note: --new-run: the checkpoints of %s (up to %s) are moved to %s/set-aside-TIME when the first "
                  "one of this run is saved", t->o.save, d->moves.newest, t->o.save);
    else if (d->moves.due)
        show_line(&t->log,
                  "warning: %s holds %s, newer than iteration %lld, which this run begins with: what is newer is "
                  "moved to %s/set-aside-TIME when the first checkpoint is saved", t->o.save, d->moves.newest,
                  (long long)b.iteration, t->o.save);
    return 0;
}

int savedir_check_steps(struct trainer *t, struct err *e)
{
    struct decision d = {0};

    if (!writes_checkpoints(t))
        return 0;
    if (trainer_is_rank0(t))
        (void)!decide_and_print_moves(t, &d, &d.err);
    if (comm_host_broadcast(comm_world_group(t->ranks.world), &d, sizeof d, 0, e) < 0)
        return -1;
    if (d.err.kind != ERR_NONE) {
        *e = d.err;
        return -1;
    }
    t->saves.moves = d.moves;
    /* If the run begins with the last save of the folder, its state has already been saved. */
    if (d.stands)
        t->saves.saved_iteration = checkpoint_info(t->from)->iteration;
    return 0;
}

/* Read the name of the newest complete checkpoint, which the status shows. */
static void read_complete_tag(struct trainer *t)
{
    checkpoint_latest(t->o.save, t->saves.complete_tag, sizeof t->saves.complete_tag);
    t->log.status.last_complete_tag = *t->saves.complete_tag ? t->saves.complete_tag : NULL;
}

void savedir_set_latest(struct trainer *t)
{
    const struct run_start b = { t->from ? checkpoint_info(t->from)->path : NULL, 0 };
    struct err e = {0};
    char *tag;
    int rc;

    if (!trainer_is_rank0(t) || !writes_checkpoints(t) || !b.path || t->o.finetune || t->o.new_run ||
        !is_in_save(t, &b))
        return;
    tag = path_base(b.path);
    rc = checkpoint_complete_publish(t->o.save, tag, &e);
    if (rc > 0)
        show_line(&t->log, "note: %s: 'latest' now names %s", t->o.save, tag);
    else if (rc < 0)
        show_line(&t->log, "warning: 'latest' cannot be set to %s: %s; run ckpt-edit latest %s %s", tag, e.msg,
                  t->o.save, tag);
    free(tag);
    read_complete_tag(t);
}

int savedir_set_aside(struct trainer *t, struct err *e)
{
    char where[512];

    if (!t->saves.moves.due || !trainer_is_rank0(t))
        return 0;
    if (checkpoint_steps_set_aside(t->o.save, t->saves.moves.after, t->saves.moves.tag, where, sizeof where, e) < 0)
        return -1;
    t->saves.moves.due = false;
    read_complete_tag(t);
    if (*where)
        show_line(&t->log, "checkpoints that were there are moved to %s", where);
    return 0;
}
