/*
 * receipt.c - write and parse receipts
 */
#include "tools/ckpt-backup/place/receipt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-backup/rules/step_name.h"

#define FORMAT "shardkit-backup"
#define HEX "_hex"

static const char *const form_names[FORM_N] = { "whole", "tar", "weights", "packed", "any", "delta" };

const char *receipt_form_name(enum backup_form form)
{
    return form_names[form];
}

bool receipt_is_file(enum backup_form form)
{
    return form == FORM_TAR || form == FORM_PACK || form == FORM_DELTA;
}

bool receipt_reads_in_place(const struct receipt *r)
{
    bool reads = r->form != FORM_PACK && r->form != FORM_ANY && r->form != FORM_DELTA;

    for (int i = 0; i < r->n_files && r->form == FORM_TAR; i++)
        reads = reads && !str_ends(r->file[i].name, ".h5");
    return reads;
}

uint64_t receipt_raw_bytes(const struct receipt *r)
{
    uint64_t sum = 0;

    for (int i = 0; i < r->n_files; i++)
        sum += r->file[i].size_bytes;
    return sum;
}

char *receipt_name(const char *tag, enum backup_form form)
{
    static const char *const suffix[FORM_N] = { "", ".tar", "-weights", ".pack", "", ".delta" };

    return str_fmt("%s%s", tag, suffix[form]);
}

static int by_receipt_file_name(const void *a, const void *b)
{
    return strcmp(((const struct receipt_file *)a)->name, ((const struct receipt_file *)b)->name);
}

const struct receipt_file *receipt_find(const struct receipt *r, const char *name)
{
    const struct receipt_file key = { .name = (char *)name };

    return r->n_files ? bsearch(&key, r->file, (size_t)r->n_files, sizeof key, by_receipt_file_name) : NULL;
}

bool receipt_is_sound(const struct receipt *r)
{
    return r->intact && !r->unsound;
}

const char *receipt_state(const struct receipt *r, const char *damaged)
{
    return !r->intact ? damaged : r->unsound ? "as its source, NOT SOUND" : r->checked ? "sound" : "as copied";
}

/* ---- writing ---- */

/*
 * Store a string. JSON is UTF-8, whereas file names are arbitrary bytes. If the string is not UTF-8, a readable form of
 * it is stored under KEY, and its bytes in hex under KEY_hex.
 */
static void set_receipt_text(json_t *o, const char *key, const char *s)
{
    struct strbuf sb = {0};
    char *key_hex;

    json_object_set_new(o, key, text_json(s));
    if (utf8_check(s, strlen(s)) == strlen(s))
        return;
    for (const char *p = s; *p; p++)
        strbuf_addf(&sb, "%02x", (unsigned char)*p);
    key_hex = str_fmt("%s" HEX, key);
    json_object_set_new(o, key_hex, json_string(sb.buf));
    free(key_hex);
    strbuf_free(&sb);
}

static json_t *receipt_file_json(const struct receipt *r, const struct receipt_file *f)
{
    char crc[9];
    json_t *o;

    snprintf(crc, sizeof crc, "%08x", f->crc);
    o = json_object();
    set_receipt_text(o, "name", f->name);
    json_object_update_new(o, json_pack("{s:I, s:s, s:I, s:i}", "size_bytes", (json_int_t)f->size_bytes, "crc32", crc,
                                        "mtime_ns", (json_int_t)f->mtime_ns, "mode", (int)f->mode));
    if (r->form == FORM_TAR)
        json_object_set_new(o, "at", json_integer((json_int_t)f->at));
    return o;
}

json_t *receipt_json(const struct receipt *r)
{
    json_t *o = json_object();

    set_receipt_text(o, "name", r->name);
    set_receipt_text(o, "tag", r->tag);
    json_object_update_new(o, json_pack("{s:o, s:s}", "step", r->step < 0 ? json_null() : json_integer(r->step),
                                        "form", form_names[r->form]));
    set_receipt_text(o, "source", r->source);
    json_object_update_new(o, json_pack("{s:I, s:o, s:b, s:I, s:i}", "copied_s", (json_int_t)r->copied_s,
        "verified_s", r->verified_s ? json_integer(r->verified_s) : json_null(), "sound", (int)receipt_is_sound(r),
        "size_bytes", (json_int_t)r->size_bytes, "n_files", r->n_files));
    json_object_update_new(o, json_pack("{s:b, s:b, s:o}", "intact", (int)r->intact, "checked", (int)r->checked,
                                        "unsound", text_json(r->unsound)));
    if (r->base)
        set_receipt_text(o, "base", r->base);
    return o;
}

char *receipt_text(const struct receipt *r)
{
    json_t *o = receipt_json(r), *list = json_array();
    char crc[9], *line, *text;

    snprintf(crc, sizeof crc, "%08x", r->tar_crc);
    json_object_set_new(o, "format", json_string(FORMAT));
    json_object_set_new(o, "version", json_integer(1));
    if (receipt_is_file(r->form))
        json_object_set_new(o, "crc32", json_string(crc));
    snprintf(crc, sizeof crc, "%08x", r->base_crc);
    if (r->base)
        json_object_set_new(o, "base_crc32", json_string(crc));
    for (int i = 0; i < r->n_files; i++)
        json_array_append_new(list, receipt_file_json(r, &r->file[i]));
    json_object_set_new(o, "files", list);
    line = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    text = str_fmt("%s\n%08x\n", line, crc_bytes(0, line, strlen(line)));
    free(line);
    json_decref(o);
    return text;
}

char *receipt_sums(const struct receipt *r)
{
    struct strbuf sb = {0};

    if (receipt_is_file(r->form))
        strbuf_addf(&sb, "%08x  %s\n", r->tar_crc, r->name);
    for (int i = 0; i < r->n_files && !receipt_is_file(r->form); i++)
        strbuf_addf(&sb, "%08x  %s\n", r->file[i].crc, r->file[i].name);
    return sb.buf ? sb.buf : xstrdup("");
}

uint32_t receipt_sums_crc(const struct receipt *r)
{
    char *sums = receipt_sums(r);
    const uint32_t crc = crc_bytes(0, sums, strlen(sums));

    free(sums);
    return crc;
}

/* ---- reading ---- */

/*
 * Decode pairs of hex digits. Returns NULL if the text is not hex, or contains a zero byte. The caller frees the
 * result.
 */
static char *from_hex(const char *hex)
{
    size_t n = strlen(hex);
    char *s = xcalloc(n / 2 + 1, 1), pair[3] = "", *end;

    for (size_t i = 0; i + 1 < n; i += 2) {
        memcpy(pair, hex + i, 2);
        s[i / 2] = (char)strtoul(pair, &end, 16);
        if (*end || pair[0] == '-' || pair[0] == '+' || s[i / 2] == '\0')
            n = 1;                      /* the number of digits is odd, which is an error */
    }
    if (n % 2 == 0)
        return s;
    free(s);
    return NULL;
}

static bool parse_receipt_text(const json_t *o, const char *key, char **into)
{
    char *key_hex = str_fmt("%s" HEX, key);
    const char *s = json_string_value(json_object_get(o, key));
    const char *hex = json_string_value(json_object_get(o, key_hex));

    *into = hex ? from_hex(hex) : s ? xstrdup(s) : NULL;
    free(key_hex);
    return *into && **into;
}

/* Read an integer. If the value is null, *into is set to `absent`. Returns false if it has any other type. */
static bool parse_receipt_integer(const json_t *o, const char *key, int64_t absent, int64_t *into)
{
    const json_t *v = json_object_get(o, key);

    *into = json_is_integer(v) ? json_integer_value(v) : absent;
    return json_is_integer(v) || json_is_null(v);
}

static bool parse_receipt_crc(const json_t *o, const char *key, uint32_t *crc)
{
    const char *s = json_string_value(json_object_get(o, key));
    char *end;

    *crc = s ? (uint32_t)strtoul(s, &end, 16) : 0;
    return s && strlen(s) == 8 && *end == '\0';
}

/* Returns true if `name`, appended to the path of a folder, is the path of a file inside this folder. */
static bool is_name_inside_folder(const char *name)
{
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (*p == '\0' || *p == '/' || (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0')))
            return false;
    return true;
}

static bool parse_receipt_file(const json_t *o, enum backup_form form, struct receipt_file *f)
{
    int64_t size, mode, at = 0;

    if (!parse_receipt_text(o, "name", &f->name) || !is_name_inside_folder(f->name) ||
        !parse_receipt_crc(o, "crc32", &f->crc) ||
        !parse_receipt_integer(o, "size_bytes", -1, &size) || !parse_receipt_integer(o, "mtime_ns", 0, &f->mtime_ns) ||
        !parse_receipt_integer(o, "mode", -1, &mode) || (form == FORM_TAR && !parse_receipt_integer(o, "at", -1, &at)))
        return false;
    f->size_bytes = (uint64_t)size;
    f->at = (uint64_t)at;
    f->mode = (unsigned)mode & 0777;
    return size >= 0 && at >= 0 && mode >= 0;
}

static bool parse_receipt_form(const json_t *o, enum backup_form *form)
{
    const char *s = json_string_value(json_object_get(o, "form"));

    for (int i = 0; s && i < FORM_N; i++)
        if (strcmp(s, form_names[i]) == 0) {
            *form = (enum backup_form)i;
            return true;
        }
    return false;
}

static bool parse_receipt_base(const json_t *o, struct receipt *r)
{
    return parse_receipt_text(o, "base", &r->base) && !strchr(r->base, '/') && is_name_inside_folder(r->base) &&
           parse_receipt_crc(o, "base_crc32", &r->base_crc);
}

static bool parse_receipt_object(const json_t *o, struct receipt *r)
{
    const char *format = json_string_value(json_object_get(o, "format"));
    const json_t *list = json_object_get(o, "files");
    int64_t size;

    if (!format || strcmp(format, FORMAT) != 0 || json_integer_value(json_object_get(o, "version")) != 1 ||
        !parse_receipt_text(o, "name", &r->name) || strchr(r->name, '/') || !is_name_inside_folder(r->name) ||
        !parse_receipt_text(o, "tag", &r->tag) || strchr(r->tag, '/') || !is_name_inside_folder(r->tag) ||
        !parse_receipt_text(o, "source", &r->source) || !parse_receipt_form(o, &r->form) ||
        !parse_receipt_integer(o, "step", -1, &r->step) || !parse_receipt_integer(o, "copied_s", 0, &r->copied_s) ||
        !parse_receipt_integer(o, "verified_s", 0, &r->verified_s) ||
        !parse_receipt_integer(o, "size_bytes", -1, &size) || size < 0 ||
        (receipt_is_file(r->form) && !parse_receipt_crc(o, "crc32", &r->tar_crc)) ||
        (r->form == FORM_DELTA && !parse_receipt_base(o, r)))
        return false;
    r->size_bytes = (uint64_t)size;
    if (r->step < 0 && r->form != FORM_ANY)             /* older versions recorded only the step of global_stepN */
        r->step = step_name_number(r->tag);
    /* Older versions of this program wrote only "sound". */
    r->intact = json_is_true(json_object_get(o, json_object_get(o, "intact") ? "intact" : "sound"));
    r->checked = json_is_true(json_object_get(o, "checked"));
    if (json_is_string(json_object_get(o, "unsound")))
        r->unsound = xstrdup(json_string_value(json_object_get(o, "unsound")));
    r->file = xcalloc(json_array_size(list) + 1, sizeof *r->file);
    for (size_t i = 0; i < json_array_size(list); i++) {
        r->n_files = (int)i + 1;
        if (!parse_receipt_file(json_array_get(list, i), r->form, &r->file[i]))
            return false;
    }
    if (r->n_files)
        qsort(r->file, (size_t)r->n_files, sizeof *r->file, by_receipt_file_name);
    return json_is_array(list);
}

struct receipt *receipt_parse(const char *text, uint64_t size, const char *where, struct err *e)
{
    const char *end = memchr(text, '\n', size);
    size_t n = end ? (size_t)(end - text) : 0;
    struct receipt *r = NULL;
    json_t *o = NULL;
    char crc[10];

    snprintf(crc, sizeof crc, "%08x\n", crc_bytes(0, text, n));
    if (!end || size != n + 10 || memcmp(end + 1, crc, 9) != 0) {
        err_data(e, where, ERR_NO_BYTE,
                 "is not a receipt of a backup, or is damaged: the CRC-32 in its last line does not match");
        return NULL;
    }
    o = json_loadb(text, n, 0, NULL);
    r = xcalloc(1, sizeof *r);
    if (!parse_receipt_object(o, r)) {
        err_data(e, where, ERR_NO_BYTE, "is not a receipt in the format of this version of ckpt-backup");
        receipt_free(r);
        r = NULL;
    }
    json_decref(o);
    return r;
}

void receipt_free(struct receipt *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_files; i++)
        free(r->file[i].name);
    free(r->file);
    free(r->name);
    free(r->tag);
    free(r->source);
    free(r->unsound);
    free(r->base);
    free(r);
}
