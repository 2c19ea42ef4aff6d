/*
 * test_dcp.c - folders of torch.distributed.checkpoint: each damaged .metadata is told of or changes no tensor
 *
 * tests/data/dcp/mesh is torch's own; tests/golden/formats_dcp.sh compares its tensors with what torch says of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/layout/layout.h"
#include "tests/lib/mutants/mutate.h"

static const char data[] = "tests/data/dcp/mesh/ckpt";

/* CRC of all of a tensor; false: it cannot be read. */
static bool crc_of(const struct source *s, const struct tmap *m, uint32_t *crc)
{
    struct err e = {0};
    uint8_t *buf = xmalloc(m->len + 1);
    bool ok = tmap_read(m, s->files, (struct tmap_range){ 0, 0, m->len }, buf, &e) == 0;

    *crc = crc_bytes(0, buf, m->len);
    free(buf);
    return ok;
}

/* Name, shape and bytes of every tensor, a line each; caller frees. */
static char *describe(const struct source *s)
{
    struct strbuf sb = {0};
    uint32_t crc;

    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];

            if (!p->state[st])
                continue;
            assert_true(crc_of(s, p->state[st], &crc));
            strbuf_addf(&sb, "%s %s %d", p->name, dtype_name(p->state[st]->dtype), p->ndim);
            for (int d = 0; d < p->ndim; d++)
                strbuf_addf(&sb, " %lld", (long long)p->shape[d]);
            strbuf_addf(&sb, " %08x\n", crc);
        }
    return sb.buf ? sb.buf : xstrdup("");
}

static void put(const char *dir, const struct mutate_file *f)
{
    char *path = path_join(dir, f->name);
    FILE *to = fopen(path, "wb");

    assert_non_null(to);
    assert_int_equal(fwrite(f->bytes, 1, f->size, to), f->size);
    assert_int_equal(fclose(to), 0);
    free(path);
}

/* Lines of `now` that are in no line of `was`, names aside: a tensor of other bytes. */
static int count_wrong(const char *was, const char *now)
{
    int n = 0;

    for (const char *line = now; *line;) {
        size_t len = strcspn(line, "\n");
        const char *rest = memchr(line, ' ', len);
        char *what = str_fmt("%.*s\n", (int)(len - (size_t)(rest - line)), rest);

        n += strstr(was, what) == NULL;
        free(what);
        line += len + 1;
    }
    return n;
}

/* Bits all over .metadata: an error, or every tensor that is still there is one of those that were. */
static void test_flips(void **state)
{
    static struct mutate_set set;
    char dir[] = "/tmp/shardkit-dcp-XXXXXX";
    struct mutate_file *meta = NULL;
    struct source_opts o = { .threads = 1 };
    struct err e = {0};
    struct source *s;
    int n_refused = 0;
    char *was;

    (void)state;
    assert_non_null(mkdtemp(dir));
    mutate_load(&set, data);
    for (int i = 0; i < set.n; i++) {
        put(dir, &set.file[i]);
        if (strcmp(set.file[i].name, ".metadata") == 0)
            meta = &set.file[i];
    }
    assert_non_null(meta);
    s = source_open(dir, &o, NULL, &e);
    assert_non_null(s);
    was = describe(s);
    source_close(s);
    for (uint64_t i = 0; i < meta->size; i += 3) {
        meta->bytes[i] ^= (uint8_t)(1 << i % 8);
        put(dir, meta);
        meta->bytes[i] ^= (uint8_t)(1 << i % 8);
        memset(&e, 0, sizeof e);
        s = source_open(dir, &o, NULL, &e);
        if (s) {
            char *now = describe(s);

            if (count_wrong(was, now))
                fail_msg("byte %llu: accepted, with\n%s", (unsigned long long)i, now);
            free(now);
        } else {
            assert_true(e.kind == ERR_DATA);
            n_refused++;
        }
        source_close(s);
    }
    /* The rest is in names, in what nobody reads (strides, versions), or in a tensor's place among the others. */
    assert_true(n_refused > (int)meta->size / 6);
    assert_int_equal(dir_remove(dir, &e), 0);
    free(was);
}

static void test_names(void **state)
{
    struct source_opts o = {0};
    struct err e = {0};
    struct source *s = source_open("tests/data/dcp/fsdp/ckpt", &o, NULL, &e);
    struct source_hit hit;

    (void)state;
    assert_non_null(s);
    assert_int_equal(s->n_params, 2);
    assert_int_equal(s->run.iteration, 3);
    assert_int_equal(s->run.opt_step, 3);
    assert_true(source_find(s, "model.0.weight", &hit) && hit.param && hit.state == STATE_FP32);
    assert_true(source_find(s, "optim.state.1.weight.exp_avg_sq", &hit) && hit.state == STATE_EXP_AVG_SQ);
    assert_string_equal(hit.param->name, "1.weight");
    assert_true(source_find(s, "1.weight:exp_avg", &hit) && hit.state == STATE_EXP_AVG);
    assert_true(source_find(s, "1.weight", &hit) && hit.param && hit.state == -1);
    assert_true(source_find(s, "optim.state.1.weight.step", &hit) && hit.value && hit.value->map);
    assert_true(source_find(s, "optim.param_groups.0.betas", &hit) && hit.value && hit.value->tree);
    assert_false(source_find(s, "2.weight", &hit));
    assert_false(source_find(s, "", &hit));
    source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_flips), cmocka_unit_test(test_names) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
