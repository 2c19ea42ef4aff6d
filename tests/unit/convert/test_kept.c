/* test_kept.c - files of the source that a result has as they are: ways, copies, checks, and names that collide */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/zero/zero_target.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/kept.h"
#include "tests/lib/scratch.h"

static const char input[] = "tests/data/zero/zero3-edge-2ranks/ckpt";
static const char text[] = "vocabulary";

static const struct {
    const char *name;                   /* in the result */
    const char *bytes;                  /* of the source's file */
    enum kept_way way, done;            /* as intended, and as it is done */
    bool listed, right;                 /* the source's manifest lists the file; with its CRC */
    bool accept;
    const char *refused;                /* part of the message; NULL if the result is written */
} cases[] = {
    { "tokenizer.json", text, KEPT_HARD_LINK, KEPT_HARD_LINK, false, false, false, NULL },
    { "below/it/tokenizer.json", text, KEPT_HARD_LINK, KEPT_HARD_LINK, true, true, false, NULL },
    { "tokenizer.json", text, KEPT_COPY, KEPT_COPY, false, false, false, NULL },
    { "below/it/tokenizer.json", text, KEPT_COPY, KEPT_COPY, true, true, false, NULL },
    { "empty", "", KEPT_COPY, KEPT_COPY, false, false, false, NULL },
    { "tokenizer.json", text, KEPT_COPY, KEPT_COPY, true, false, false, "has crc" },
    { "tokenizer.json", text, KEPT_COPY, KEPT_COPY, true, false, true, NULL },
    /* The layout writes a file of this name. */
    { "zero_pp_rank_0_mp_rank_00_model_states.pt", text, KEPT_HARD_LINK, KEPT_HARD_LINK, true, true, false, NULL },
    { "zero_pp_rank_0_mp_rank_00_model_states.pt", text, KEPT_COPY, KEPT_COPY, false, false, false, NULL },
};

static void write_text(const char *path, const char *bytes)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(bytes, f);
    fclose(f);
}

/* Returns the size of the file, and sets *same if it is the file `as` under another name. */
static int64_t inspect_result(const char *path, const char *as, bool *same)
{
    struct stat st, of;

    *same = stat(path, &st) == 0 && stat(as, &of) == 0 && st.st_ino == of.st_ino && st.st_dev == of.st_dev;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

static int write_with_kept_file(struct source *s, struct kept_file *kept, const char *out, struct err *e)
{
    struct sink_opts so = { .replicas = REPLICAS_FIRST, .final_path = out, .n_parts = 1, .threads = 2 };
    const struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                                    .progress = PROGRESS_NEVER, .force = true };
    const struct zero_request q = {0};
    struct report *notes = report_new();
    struct zero_target *t = zero_target_new(s, &q, notes, e);
    struct arena *maps = arena_new(0);
    struct convert_result res;
    struct sink *k;
    int rc = -1;

    if (t) {
        k = zero_sink(&so, t);
        k->kept = &kept;
        k->n_kept = 1;
        k->kept_arena = maps;
        rc = convert_run(s, k, &o, &res, e);
    }
    arena_free(maps);
    zero_target_free(t);
    report_free(notes);
    return rc;
}

static void test_ways(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct source *s = source_open(input, NULL, NULL, &e);
        char *from = path_join(scratch, "from"), *out = path_join(scratch, "out"), *path = path_join(out, cases[i].name);
        const size_t len = strlen(cases[i].bytes);
        const bool written = str_starts(cases[i].name, "zero_");
        struct kept_file kept = { .name = cases[i].name, .way = cases[i].way, .has_crc = cases[i].listed,
                                  .must_match = !cases[i].accept,
                                  .crc = crc_bytes(0, cases[i].bytes, len) + (cases[i].right ? 0 : 1) };
        bool same;
        int rc;

        assert_non_null(s);
        write_text(from, cases[i].bytes);
        kept.file = files_add_path(s->files, from, &e);
        assert_true(kept.file >= 0);
        rc = write_with_kept_file(s, &kept, out, &e);
        if (rc != (cases[i].refused ? -1 : 0) || (rc < 0 && !strstr(e.msg, cases[i].refused)))
            fail_msg("case %zu: %d, '%s'", i, rc, rc < 0 ? e.msg : "");
        if (rc == 0) {
            const int64_t size = inspect_result(path, from, &same);

            assert_int_equal(kept.way, cases[i].done);
            assert_int_equal(same, kept.way == KEPT_HARD_LINK && !written);
            assert_true(written ? size > (int64_t)len : size == (int64_t)len);
            assert_int_equal(inspect_result(from, from, &same), len);   /* the source's file is unchanged */
            source_close(s);
            s = source_open(out, NULL, NULL, &e);                       /* the manifest fits the files */
            assert_non_null(s);
        }
        assert_int_equal(dir_remove(out, &(struct err){0}) < 0, rc < 0);
        source_close(s);
        free(path);
        free(out);
        free(from);
    }
}

/* Hard links are chosen only if they are requested, and every file gets a way that the file system has. */
static void test_choice(void **state)
{
    char *path = path_join(scratch, "from"), *out = path_join(scratch, "out");
    struct files *f = files_new();
    struct kept_file kept = {0}, *list = &kept;
    struct err e = {0};

    (void)state;
    write_text(path, text);
    kept.file = files_add_path(f, path, &e);
    kept_choose_ways(&list, 1, f, out, true);
    assert_int_equal(kept.way, KEPT_HARD_LINK);
    kept_choose_ways(&list, 1, f, out, false);
    assert_int_not_equal(kept.way, KEPT_HARD_LINK);
    files_free(f);
    free(out);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ways), cmocka_unit_test(test_choice) };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
