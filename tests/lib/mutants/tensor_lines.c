#include "tests/lib/mutants/tensor_lines.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/manifest.h"

char *tensor_lines(const char *out)
{
    struct err e = {0};
    uint64_t size;
    char *path = path_join(out, MANIFEST_NAME), *text = file_slurp(path, 1 << 24, &size, &e), *from, *lines;

    free(path);
    from = text ? strstr(text, "\"tensors\"") : NULL;
    if (from)
        *strstr(from, "\n]") = '\0';
    lines = xstrdup(from ? from : "");
    free(text);
    return lines;
}

static uint32_t crc_of(const struct source *s, const struct tmap *m)
{
    struct err e = {0};
    uint8_t *buf = xmalloc(m->len + 1);
    uint32_t crc;

    assert(tmap_read(m, s->files, (struct tmap_range){ 0, 0, m->len }, buf, &e) == 0);
    crc = crc_bytes(0, buf, m->len);
    free(buf);
    return crc;
}

char *tensor_lines_of(const struct source *s)
{
    struct strbuf sb = {0};

    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];

            if (!p->state[st])
                continue;
            strbuf_addf(&sb, "%s %s %d", p->name, dtype_name(p->state[st]->dtype), p->ndim);
            for (int d = 0; d < p->ndim; d++)
                strbuf_addf(&sb, " %lld", (long long)p->shape[d]);
            strbuf_addf(&sb, " %08x\n", crc_of(s, p->state[st]));
        }
    return sb.buf ? sb.buf : xstrdup("");
}

/* Returns true if `pass` accepts each line of `got`, without the trailing comma. */
typedef bool line_fn(const char *line, const char *want, const char *ctx);

static bool every_line(const char *got, const char *want, line_fn *pass, const char *ctx)
{
    char *copy = xstrdup(got), *save = NULL;
    bool good = true;

    for (char *line = strtok_r(copy, "\n", &save); line && good; line = strtok_r(NULL, "\n", &save)) {
        if (str_ends(line, ","))
            line[strlen(line) - 1] = '\0';
        good = pass(line, want, ctx);
    }
    free(copy);
    return good;
}

static bool is_state(const char *line, const char *want, const char *also)
{
    return strstr(want, line) || strstr(line, "\"exp_avg\"") || strstr(line, "\"exp_avg_sq\"") ||
           (also && strstr(line, also));
}

bool tensor_lines_only_states(const char *got, const char *want, bool masters)
{
    return every_line(got, want, is_state, masters ? "\"fp32\"" : NULL);
}

static bool is_untrained(const char *line, const char *want, const char *trained)
{
    const char *end = strstr(line, ",\"state\"");
    char *moments = end ? str_fmt("%.*s,\"state\":\"exp_avg\"", (int)(end - line), line) : NULL;
    const bool known = moments && strstr(trained, moments);

    free(moments);
    return strstr(want, line) || !known;
}

bool tensor_lines_only_untrained(const char *got, const char *want, const char *trained)
{
    return every_line(got, want, is_untrained, trained);
}

static bool is_named(const char *line, const char *want, const char *unused)
{
    const char *rest = strstr(line, "\"state\"");

    (void)unused;
    return strstr(want, rest ? rest : line);
}

bool tensor_lines_only_names(const char *got, const char *want)
{
    return every_line(got, want, is_named, NULL);
}

static bool is_other(const char *line, const char *want, const char *unused)
{
    (void)unused;
    return !strstr(want, line);
}

int tensor_lines_n_others(const char *got, const char *want)
{
    char *copy = xstrdup(got), *save = NULL;
    int n = 0;

    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (str_ends(line, ","))
            line[strlen(line) - 1] = '\0';
        n += is_other(line, want, NULL);
    }
    free(copy);
    return n;
}
