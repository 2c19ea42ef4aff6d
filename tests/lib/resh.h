/*
 * resh.h - make, reshape and compare checkpoints in a scratch folder, for tests of conversions
 *
 * Every failure fails the running cmocka test. The caller frees returned paths and texts.
 */
#ifndef SHARDKIT_TESTS_RESH_H
#define SHARDKIT_TESTS_RESH_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ckptgen.h"

/* Group setup and teardown: create a scratch folder, in memory if /dev/shm exists, and remove it. */
int resh_make_scratch(void **state);
int resh_remove_scratch(void **state);
char *resh_in_scratch(const char *name);

/* Fail with the text of the error if `ok` is 0. */
void resh_must(int ok, const struct err *e);

/* Return a model that TP 8 and PP 5 can divide, a few KB per file. */
struct ckptgen resh_small_model(int tp, int pp, int dp);
/* Generate a set in `name` below the scratch folder and replace existing files. Returns its tag folder. */
char *resh_generate(const struct ckptgen *g, const char *name);

/* Return a request for these degrees only; 0 keeps the degree of the source. */
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

/* Expect that verify finds the folder sound, without warnings. */
void resh_expect_sound(const char *dir);
/* Expect two files with the same contents (ptdiff.h). The paths in `except`, which may be NULL, may differ. */
void resh_same_file(const char *want, const char *got, const char *name, const char *const *except);
/* Expect two files that are equal byte by byte. */
void resh_same_bytes(const char *want, const char *got, const char *name);
/* Expect .pt files of the same names in both folders. The caller frees the names with ptdiff_list_free(). */
void resh_same_names(const char *want, const char *got, char ***names, int *n);
/* Expect that the manifests of two folders list the same tensors with the same digests. */
void resh_same_digests(const char *a, const char *b);

#endif
