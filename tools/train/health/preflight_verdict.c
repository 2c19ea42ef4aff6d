/*
 * preflight_verdict.c - evaluate and print the results of all ranks
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/progress.h"
#include "tools/train/health/preflight.h"

static const struct {
    const char *name, *head, *key;
} rates[RATE_N] = {
    [RATE_GEMM] = { "matrix products", "products", "gemm_flop_per_s" },
    [RATE_COPY] = { "copies on the device", "copies", "copy_bytes_per_s" },
    [RATE_TO_DEVICE] = { "copies to the device", "to device", "to_device_bytes_per_s" },
    [RATE_FROM_DEVICE] = { "copies from the device", "from device", "from_device_bytes_per_s" },
    [RATE_LINK] = { "the link", "link", "link_bytes_per_s" },
};

static void rate_text(char *buf, size_t room, enum preflight_rate kind, double x)
{
    const char *what = kind == RATE_GEMM ? "FLOP/s" : "B/s";

    if (x <= 0)
        snprintf(buf, room, "-");
    else if (kind == RATE_GEMM && x >= 1e12)
        snprintf(buf, room, "%.1f T%s", x * 1e-12, what);
    else
        snprintf(buf, room, "%.1f G%s", x * 1e-9, what);
}

static int by_rate(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static bool stays_on_host(const struct preflight_rank *r) { return r->node == r->next_node; }

/*
 * Returns the median of a rate over all ranks. RATE_LINK is special: only ranks whose link is of the same kind as the
 * link of *r are included. Returns 0 if no rank has measured the rate.
 */
static double median_for(const struct preflight_rank *all, int n, const struct preflight_rank *r,
                         enum preflight_rate kind, double *room)
{
    int m = 0;

    for (int i = 0; i < n; i++)
        if (all[i].rate[kind] > 0 && (kind != RATE_LINK || stays_on_host(&all[i]) == stays_on_host(r)))
            room[m++] = all[i].rate[kind];
    if (m == 0)
        return 0;
    qsort(room, (size_t)m, sizeof *room, by_rate);
    return m % 2 ? room[m / 2] : (room[m / 2 - 1] + room[m / 2]) / 2;
}

static void add_preflight_rank_name(const struct preflight_rank *r, struct strbuf *out)
{
    strbuf_addf(out, "rank %d (host %s", r->rank, r->host);
    if (r->who.uuid[0])
        strbuf_addf(out, ", %s at %s", r->who.uuid, r->who.pci);
    strbuf_addf(out, ")");
}

static bool add_slow_rate(const struct preflight_rank *all, int n, const struct preflight_rank *r,
                          enum preflight_rate kind, double *room, struct strbuf *out)
{
    const double median = median_for(all, n, r, kind, room), x = r->rate[kind];
    char own[32], usual[32];

    /* If a rank has no rate, it has an error, which has already been reported. */
    if (median <= 0 || x <= 0 || x >= PREFLIGHT_SHARE * median)
        return false;
    rate_text(own, sizeof own, kind, x);
    rate_text(usual, sizeof usual, kind, median);
    strbuf_addf(out, "slow: ");
    add_preflight_rank_name(r, out);
    strbuf_addf(out, ": %s", rates[kind].name);
    if (kind == RATE_LINK)
        strbuf_addf(out, " to rank %d", r->next);
    strbuf_addf(out, " %s, %.0f%% of the median %s\n", own, 100 * x / median, usual);
    return true;
}

int preflight_verdict(const struct preflight_rank *r, int n, struct strbuf *out)
{
    double *room = xcalloc((size_t)n, sizeof *room);
    int named = 0;

    for (int i = 0; i < n; i++) {
        bool bad = r[i].wrong[0];

        if (bad) {
            strbuf_addf(out, "wrong: ");
            add_preflight_rank_name(&r[i], out);
            strbuf_addf(out, ": %s\n", r[i].wrong);
        }
        for (int kind = 0; kind < RATE_N; kind++)
            bad |= add_slow_rate(r, n, &r[i], (enum preflight_rate)kind, room, out);
        named += bad;
    }
    free(room);
    return named;
}

/* ---- printing ---- */

static int text_column_width(const struct preflight_rank *r, int n, size_t field)
{
    int width = 6;

    for (int i = 0; i < n; i++) {
        int len = (int)strlen((const char *)&r[i] + field);

        width = len > width ? len : width;
    }
    return width;
}

#define WIDTH(f) text_column_width(r, n, offsetof(struct preflight_rank, f))

void preflight_table(const struct preflight_rank *r, int n, struct strbuf *out)
{
    const int host = WIDTH(host), model = WIDTH(who.model), uuid = WIDTH(who.uuid), pci = WIDTH(who.pci);
    char text[32];

    strbuf_addf(out, "%4s  %-*s  %-*s  %-*s  %-*s  %9s", "rank", host, "host", model, "device", uuid, "UUID",
                pci, "PCI id", "memory");
    for (int k = 0; k < RATE_N; k++)
        strbuf_addf(out, "  %14s", rates[k].head);
    strbuf_addf(out, "\n");
    for (int i = 0; i < n; i++) {
        strbuf_addf(out, "%4d  %-*s  %-*s  %-*s  %-*s  %9s", r[i].rank, host, r[i].host, model, r[i].who.model, uuid,
                    r[i].who.uuid[0] ? r[i].who.uuid : "-", pci, r[i].who.pci[0] ? r[i].who.pci : "-",
                    bytes_text(r[i].memory, text));
        for (int k = 0; k < RATE_N; k++) {
            rate_text(text, sizeof text, (enum preflight_rate)k, r[i].rate[k]);
            strbuf_addf(out, "  %14s", text);
        }
        if (r[i].next >= 0)
            strbuf_addf(out, " to %d", r[i].next);
        strbuf_addf(out, "\n");
    }
}

static json_t *text_or_null(const char *s)
{
    json_t *v = s[0] ? json_string(s) : json_null();

    return v ? v : json_string("?");    /* the bytes are not valid UTF-8 */
}

void preflight_json(const struct preflight_rank *r, int n, struct strbuf *out)
{
    for (int i = 0; i < n; i++) {
        json_t *o = json_object();
        char *line;

        json_object_set_new(o, "rank", json_integer(r[i].rank));
        json_object_set_new(o, "host", text_or_null(r[i].host));
        json_object_set_new(o, "device", text_or_null(r[i].who.model));
        json_object_set_new(o, "uuid", text_or_null(r[i].who.uuid));
        json_object_set_new(o, "pci", text_or_null(r[i].who.pci));
        json_object_set_new(o, "memory_bytes", json_integer((json_int_t)r[i].memory));
        for (int k = 0; k < RATE_N; k++)
            json_object_set_new(o, rates[k].key, r[i].rate[k] > 0 ? json_real(r[i].rate[k]) : json_null());
        json_object_set_new(o, "link_to_rank", r[i].next >= 0 ? json_integer(r[i].next) : json_null());
        json_object_set_new(o, "wrong", text_or_null(r[i].wrong));
        line = json_dumps(o, JSON_COMPACT);
        strbuf_addf(out, "%s\n", line);
        free(line);
        json_decref(o);
    }
}
