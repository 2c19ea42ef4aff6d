/*
 * resh.h - for tests that convert: checkpoints made, reshaped, and compared, in a scratch folder
 *
 * What fails, fails the cmocka test that runs. Paths and texts that are returned are the
 * caller's to free.
 */
#ifndef SHARDKIT_TESTS_RESH_H
#define SHARDKIT_TESTS_RESH_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "tests/lib/ckptgen.h"

/* Of the group: a folder, in memory where there is /dev/shm, and its end. */
int resh_make_scratch(void **state);
int resh_remove_scratch(void **state);
char *resh_in_scratch(const char *name);

/* Fail with the error's sentence unless `ok`. */
void resh_must(int ok, const struct err *e);

/* A model that TP 8 and PP 5 can cut, a few KB a file. */
struct ckptgen resh_small_model(int tp, int pp, int dp);
/* Made below `name` in the scratch folder, in place of what was there; returns its tag folder. */
char *resh_generate(const struct ckptgen *g, const char *name);

/* Degrees alone asked for; 0: as the source. */
struct ds_request resh_to_topology(int tp, int pp, int dp);
int resh_try(const char *in, const char *out, const struct ds_request *q, struct err *e);
void resh_do(const char *in, const char *out, const struct ds_request *q);
void resh_to_universal(const char *in, const char *out, struct sink *(*open_sink)(const struct sink_opts *));

struct source *resh_open_source(const char *dir);
/* A .pt file of a folder. */
struct resh_side {
    struct files *f;
    struct pt *pt;
};
struct resh_side resh_open_side(const char *dir, const char *name);
void resh_close_side(struct resh_side *s);

/* Sound, and nothing to warn of. */
void resh_expect_sound(const char *dir);
/* Two files say the same (ptdiff.h), but for what lies below the paths in `except`, which may be NULL. */
void resh_same_file(const char *want, const char *got, const char *name, const char *const *except);
/* Two files are the same, byte by byte. */
void resh_same_bytes(const char *want, const char *got, const char *name);
/* Two folders have .pt files of the same names, which are returned for ptdiff_list_free(). */
void resh_same_names(const char *want, const char *got, char ***names, int *n);
/* The manifests of two folders list the same tensors with the same digests. */
void resh_same_digests(const char *a, const char *b);

#endif
