/*
 * test_shardkit.c - the C interface: what it lists, reads, locates and verifies, and how it fails
 */
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "include/shardkit.h"
#include "tests/lib/scratch.h"

#define GPT2 "tests/data/gpt2-tp2pp2dp1/global_step20"

static struct sk_checkpoint *open_gpt2(void)
{
    struct sk_error e = {0};
    struct sk_checkpoint *c = sk_open("tests/data/gpt2-tp2pp2dp1", NULL, &e);

    assert_non_null(c);
    return c;
}

static void lists_tensors(void **state)
{
    struct sk_checkpoint *c = open_gpt2();
    const struct sk_tensor *t = sk_tensor(c, 0);
    int n;

    (void)state;
    assert_int_equal(sk_abi(), SHARDKIT_ABI);
    assert_string_equal(sk_version(), SHARDKIT_VERSION);
    assert_string_equal(sk_info(c)->layout, "deepspeed");
    assert_string_equal(sk_info(c)->path, GPT2);
    assert_int_equal(sk_info(c)->iteration, 20);
    assert_int_equal(sk_count(c), 52 * 4);
    assert_string_equal(t->name, "tied_modules.embed.word_embeddings.weight");
    assert_string_equal(t->state, "bf16");
    assert_string_equal(t->dtype, "bf16");
    assert_int_equal(t->kind, SK_PARAMETER);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0] * t->shape[1], t->elements);
    assert_int_equal(t->bytes, t->elements * 2);
    assert_null(sk_tensor(c, -1));
    assert_null(sk_tensor(c, sk_count(c)));
    assert_int_equal(sk_findings(c, &n)[0].severity, SK_NOTE);
    assert_int_equal(n, 1);
    sk_close(c);
    sk_close(NULL);
}

static void finds_by_every_name(void **state)
{
    struct sk_checkpoint *c = open_gpt2();
    struct sk_error e = {0};
    int64_t i = sk_find(c, "3.mlp.dense_4h_to_h.weight", NULL, &e);

    (void)state;
    assert_string_equal(sk_tensor(c, i)->state, "fp32");
    i = sk_find(c, "3.mlp.dense_4h_to_h.weight", "exp_avg", &e);
    assert_string_equal(sk_tensor(c, i)->state, "exp_avg");
    assert_int_equal(sk_find(c, "3.mlp.dense_4h_to_h.weight:exp_avg", NULL, &e), i);
    assert_int_equal(sk_find(c, "3.mlp.dense_4h_to_h.wieght", NULL, &e), -1);
    assert_int_equal(e.code, SK_ERROR_DATA);
    assert_non_null(strstr(e.text, "did you mean '3.mlp.dense_4h_to_h.weight'?"));
    assert_int_equal(sk_find(c, "3.mlp.dense_4h_to_h.weight", "momentum", &e), -1);
    assert_int_equal(e.code, SK_ERROR_USAGE);
    assert_int_equal(sk_find(c, "x", NULL, NULL), -1);
    sk_close(c);
}

/* A row-parallel weight: a range has the bytes that the whole tensor has there. */
static void reads_ranges(void **state)
{
    struct sk_checkpoint *c = open_gpt2();
    struct sk_error e = {0};
    int64_t i = sk_find(c, "3.mlp.dense_4h_to_h.weight", "fp32", &e);
    const struct sk_tensor *t = sk_tensor(c, i);
    uint8_t *all = malloc(t->bytes), part[400];

    (void)state;
    assert_int_equal(sk_read(c, i, 0, t->elements, all, t->bytes, &e), 0);
    assert_int_equal(sk_read(c, i, 201, 100, part, sizeof part, &e), 0);
    assert_memory_equal(part, all + 201 * 4, sizeof part);
    assert_int_equal(sk_read(c, i, t->elements, 0, NULL, 0, &e), 0);
    assert_int_equal(sk_read(c, i, t->elements - 1, 2, part, sizeof part, &e), -1);
    assert_int_equal(e.code, SK_ERROR_USAGE);
    assert_int_equal(sk_read(c, i, INT64_MAX, INT64_MAX, part, sizeof part, &e), -1);
    assert_int_equal(sk_read(c, i, 0, 101, part, sizeof part, &e), -1);
    assert_non_null(strstr(e.text, "need 404 bytes, the buffer has 400"));
    assert_int_equal(sk_read(c, sk_count(c), 0, 0, NULL, 0, &e), -1);
    free(all);
    sk_close(c);
}

/* A weight of one pipeline stage that is not split lies whole in a file; a split one does not. */
static void locates_whole_tensors(void **state)
{
    struct sk_open_options first = { .size = sizeof first, .replicas = SK_REPLICAS_FIRST };
    struct sk_error e = {0};
    struct sk_checkpoint *c = sk_open(GPT2, &first, &e);
    struct sk_place place;
    int64_t i = sk_find(c, "3.input_layernorm.weight", "bf16", &e);
    uint8_t have[128], want[128];
    int fd;

    (void)state;
    assert_int_equal(sk_locate(c, i, &place), 1);
    fd = open(place.path, O_RDONLY);
    assert_int_equal(pread(fd, have, sizeof have, (off_t)place.at), sizeof have);
    assert_int_equal(sk_read(c, i, 0, 64, want, sizeof want, &e), 0);
    assert_memory_equal(have, want, sizeof have);
    close(fd);
    fd = sk_place_descriptor(c, i, &e);
    assert_int_equal(pread(fd, have, sizeof have, (off_t)place.at), sizeof have);
    assert_memory_equal(have, want, sizeof have);
    close(fd);
    assert_int_equal(sk_place_descriptor(c, sk_find(c, "3.mlp.dense_4h_to_h.weight", "bf16", &e), &e), -1);
    assert_int_equal(e.code, SK_ERROR_DATA);
    assert_int_equal(sk_locate(c, sk_find(c, "3.mlp.dense_4h_to_h.weight", "bf16", &e), &place), 0);
    assert_int_equal(sk_locate(c, -1, &place), 0);
    sk_close(c);
    c = open_gpt2();
    assert_int_equal(sk_locate(c, i, &place), 0);       /* the copies of both tensor ranks are averaged */
    sk_close(c);
}

static void refuses(void **state)
{
    struct {
        struct sk_open_options is;
        int later;
    } o = { .is = { .size = sizeof o }, .later = 1 };
    struct sk_error e = {0};

    (void)state;
    assert_null(sk_open("tests/data/nothing", NULL, &e));
    assert_int_equal(e.code, SK_ERROR_SYSTEM);
    assert_null(sk_open("tests/data/nothing", NULL, NULL));
    assert_null(sk_open(GPT2, &o.is, &e));
    assert_int_equal(e.code, SK_ERROR_USAGE);
    o.is.size = 1;
    assert_null(sk_open(GPT2, &o.is, &e));
    o.is.size = sizeof o.is;
    o.is.replicas = 4;
    assert_null(sk_open(GPT2, &o.is, &e));
    assert_int_equal(e.code, SK_ERROR_USAGE);
}

/* Wrong arguments are errors and end no process. */
static void refuses_wrong_arguments(void **state)
{
    static const int threads[] = { -1, INT_MIN, 1025, 100000, INT_MAX };
    struct sk_open_options o = { .size = sizeof o };
    struct sk_verify_options v = { .size = sizeof v };
    struct sk_checkpoint *c = open_gpt2();
    struct sk_place place;
    uint8_t byte[4];

    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        struct sk_error e = {0};

        o.threads = v.threads = threads[i];
        assert_null(sk_open(GPT2, &o, &e));
        assert_int_equal(e.code, SK_ERROR_USAGE);
        assert_null(sk_verify(GPT2, &v, &e));
        assert_int_equal(e.code, SK_ERROR_USAGE);
        assert_non_null(strstr(e.text, "expected 1 to 1024"));
    }
    for (int i = 0; i < 7; i++) {
        struct sk_error e = {0};

        if (i == 0)
            assert_null(sk_open(NULL, NULL, &e));
        else if (i == 1)
            assert_null(sk_verify(NULL, NULL, &e));
        else if (i == 2)
            assert_int_equal(sk_find(c, NULL, NULL, &e), -1);
        else if (i == 3)
            assert_int_equal(sk_find(NULL, "x", NULL, &e), -1);
        else if (i == 4)
            assert_int_equal(sk_read(c, 0, 0, 1, NULL, 4, &e), -1);
        else if (i == 5)
            assert_int_equal(sk_read(NULL, 0, 0, 1, byte, 4, &e), -1);
        else
            assert_int_equal(sk_place_descriptor(NULL, 0, &e), -1);
        assert_int_equal(e.code, SK_ERROR_USAGE);
    }
    assert_non_null(sk_findings(c, NULL));
    assert_null(sk_findings(NULL, NULL));
    assert_null(sk_info(NULL));
    assert_null(sk_tensor(NULL, 0));
    assert_int_equal(sk_count(NULL), 0);
    assert_int_equal(sk_locate(NULL, 0, &place), 0);
    assert_int_equal(sk_locate(c, 0, NULL), 0);
    sk_close(c);
}

static void verifies(void **state)
{
    struct sk_verify_options o = { .size = sizeof o };
    struct sk_open_options damaged = { .size = sizeof damaged, .damaged = 1 };
    char command[1024], dir[300];
    struct sk_error e = {0};
    struct sk_verification *v = sk_verify(GPT2, NULL, &e);
    struct sk_checkpoint *c;
    int stop = 1, n;

    (void)state;
    assert_int_equal(v->sound, 1);
    assert_string_equal(v->layout, "deepspeed");
    assert_int_equal(v->files, 20);
    sk_verification_free(v);
    sk_verification_free(NULL);

    snprintf(dir, sizeof dir, "%s/x", scratch);
    snprintf(command, sizeof command, "cp -R %s %s && rm %s/layer_03-model_01-model_states.pt", GPT2, dir, dir);
    assert_int_equal(system(command), 0);
    v = sk_verify(dir, &o, &e);
    assert_int_equal(v->sound, 0);
    assert_int_equal(v->finding[0].severity, SK_ERROR);
    assert_string_equal(v->finding[0].code, "missing_file");
    assert_non_null(strstr(v->finding[0].text, "layer_03-model_01-model_states.pt"));
    sk_verification_free(v);
    assert_null(sk_open(dir, NULL, &e));
    assert_int_equal(e.code, SK_ERROR_DATA);
    c = sk_open(dir, &damaged, &e);
    assert_non_null(c);
    assert_string_equal(sk_findings(c, &n)->code, "missing_file");
    sk_close(c);

    o.stop = &stop;
    assert_null(sk_verify(GPT2, &o, &e));
    assert_int_equal(e.code, SK_ERROR_STOPPED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_tensors),
        cmocka_unit_test(finds_by_every_name),
        cmocka_unit_test(reads_ranges),
        cmocka_unit_test(locates_whole_tensors),
        cmocka_unit_test(refuses),
        cmocka_unit_test(refuses_wrong_arguments),
        cmocka_unit_test(verifies),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
