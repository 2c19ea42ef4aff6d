/*
 * remote.c - the files and receipts of a remote
 */
#include "tools/ckpt-backup/place/remote.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "tools/ckpt-backup/place/rclone.h"

/* ---- a backup's parts ---- */

int far_parts(const struct receipt *rec)
{
    return receipt_is_file(rec->form) ? 1 : rec->n_files;
}

char *far_part_path(const struct receipt *rec, int i)
{
    return receipt_is_file(rec->form) ? xstrdup(rec->name) : path_join(rec->name, rec->file[i].name);
}

uint32_t far_part_crc(const struct receipt *rec, int i)
{
    return receipt_is_file(rec->form) ? rec->tar_crc : rec->file[i].crc;
}

/* ---- files of the remote ---- */

char *far_path(const struct place *p, const char *inside)
{
    return p->path[strlen(p->path) - 1] == ':' ? str_fmt("%s%s", p->path, inside) : path_join(p->path, inside);
}

char *far_sidecar_path(const struct place *p, const char *name, const char *suffix)
{
    char *inside = str_fmt("%s/%s%s", RECEIPT_FOLDER, name, suffix), *path = far_path(p, inside);

    free(inside);
    return path;
}

int far_write(const struct place *p, char *path, const char *text, struct err *e)
{
    struct rclone_call c = { { "rcat", path }, .input = text, .stopped = p->o.stopped };
    int rc = rclone_run(&c, p->path, e);

    free(path);
    return rc;
}

int far_delete(const struct place *p, const char *inside, const char *files, struct err *e)
{
    char *folder = far_path(p, inside);
    /* The command "delete" is used with a list of files, because "deletefile" fails if the file does not exist. */
    struct rclone_call c = { { "delete", "--files-from-raw", "-", folder }, .input = files, .absent_is_fine = true,
                             .stopped = p->o.stopped };
    int rc = *files ? rclone_run(&c, p->path, e) : 0;   /* if there are no files, rclone is not called, because
                                                         * without a list it would delete everything */

    free(folder);
    return rc < 0 ? -1 : 0;
}

int far_delete_sidecar(const struct place *p, const char *name, const char *suffix, struct err *e)
{
    char *file = str_fmt("%s%s\n", name, suffix);
    int rc = far_delete(p, RECEIPT_FOLDER, file, e);

    free(file);
    return rc;
}

int far_write_receipt(const struct place *p, const struct receipt *rec, struct err *e)
{
    char *text = receipt_text(rec), *sums = receipt_sums(rec);
    int rc = far_write(p, far_sidecar_path(p, rec->name, ".crc32"), sums, e);

    if (rc == 0)
        rc = far_write(p, far_sidecar_path(p, rec->name, ".json"), text, e);
    free(text);
    free(sums);
    return rc;
}

int far_replace_receipt(const struct place *p, const struct receipt *rec, struct err *e)
{
    char *text = receipt_text(rec);
    int rc = far_write(p, far_sidecar_path(p, rec->name, NEW_RECEIPT), text, e);

    if (rc == 0)
        rc = far_write(p, far_sidecar_path(p, rec->name, ".json"), text, e);
    free(text);
    return rc < 0 ? -1 : far_delete_sidecar(p, rec->name, NEW_RECEIPT, e);
}

/* ---- listing ---- */

void far_list_free(struct far_list *l)
{
    arena_free(l->arena);
    json_decref(l->all);
    free(l->size);
    *l = (struct far_list){0};
}

const char *far_name(const struct far_list *l, int i)
{
    const char *s = json_string_value(json_object_get(json_array_get(l->all, (size_t)i), "Path"));

    return s ? s : "";
}

int far_list(const struct place *p, struct far_list *l, struct err *e)
{
    struct strbuf sb = {0};
    struct rclone_call c = { { "lsjson", "--recursive", "--files-only", "--no-mimetype", "--no-modtime", p->path },
                             .output = &sb, .absent_is_fine = true, .stopped = p->o.stopped };
    int rc = rclone_run(&c, p->path, e);

    *l = (struct far_list){ .arena = arena_new(0) };
    l->names = names_new(l->arena);
    if (rc == 0)
        l->all = json_loadb(sb.buf ? sb.buf : "", sb.len, 0, NULL);
    if (rc == 0 && !json_is_array(l->all)) {
        err_data(e, p->path, ERR_NO_BYTE, "rclone lsjson did not print a list of files");
        rc = -1;
    }
    l->n = (int)json_array_size(l->all);
    l->size = xcalloc((size_t)l->n + 1, sizeof *l->size);
    for (int i = 0; i < l->n; i++) {
        l->size[i] = json_integer_value(json_object_get(json_array_get(l->all, (size_t)i), "Size"));
        names_add(l->names, far_name(l, i), i);
    }
    strbuf_free(&sb);
    if (rc < 0)
        far_list_free(l);
    return rc < 0 ? -1 : 0;
}

bool far_has(const struct far_list *l, const char *name, const char *suffix)
{
    char *path = str_fmt("%s/%s%s", RECEIPT_FOLDER, name, suffix);
    bool has = names_find(l->names, path) >= 0;

    free(path);
    return has;
}

static void report_remote_foreign(const struct place *p, const struct far_list *l, const struct receipt *rec,
                                  struct report *r)
{
    char *inside = str_fmt("%s/", rec->name), *shown = far_path(p, rec->name);
    bool found = false;

    for (int i = 0; i < l->n && !found; i++) {
        const char *name = far_name(l, i);

        found = str_starts(name, inside) && !receipt_find(rec, name + strlen(inside));
        if (found)
            report_add(r, SEV_ERROR, "foreign", shown, ERR_NO_BYTE, NULL, FOREIGN_TEXT, name + strlen(inside));
    }
    free(inside);
    free(shown);
}

/*
 * Compare the files of a backup on the remote with its receipt. Adds a finding for the first file that does not exist,
 * has another size, or is not in the receipt.
 */
static void check_remote_files(const struct place *p, const struct far_list *l, const struct receipt *rec,
                               struct report *r)
{
    bool well = true;

    for (int i = 0; i < far_parts(rec) && well; i++) {
        uint64_t size = receipt_is_file(rec->form) ? rec->size_bytes : rec->file[i].size_bytes;
        char *inside = far_part_path(rec, i), *shown = far_path(p, inside);
        int k = names_find(l->names, inside);

        well = k >= 0 && (uint64_t)l->size[k] == size;
        if (k < 0)
            report_add(r, SEV_ERROR, "file_missing", shown, ERR_NO_BYTE, NULL, "is missing, but the receipt lists it");
        else if (!well)
            report_add(r, SEV_ERROR, "file_size", shown, ERR_NO_BYTE, NULL,
                       "has %lld bytes, but its receipt lists %llu",
                       (long long)l->size[k], (unsigned long long)size);
        free(inside);
        free(shown);
    }
    if (well && !receipt_is_file(rec->form))
        report_remote_foreign(p, l, rec, r);
}

/* ---- receipts ---- */

struct receipt *far_find_receipt(const struct place_receipts *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->receipt[i]->name, name) == 0)
            return l->receipt[i];
    return NULL;
}

/* Parse receipts that follow one another; each has two lines. A damaged receipt may have only one. */
static void parse_receipts(const struct place *p, struct strbuf *sb, struct place_receipts *out)
{
    char *end = sb->buf + sb->len;

    for (char *at = sb->buf; at < end;) {
        char *line = memchr(at, '\n', (size_t)(end - at)), *sum = line ? line + 1 : end;
        char *next = memchr(sum, '\n', (size_t)(end - sum));
        struct err ignored = {0};
        struct receipt *rec = NULL;

        if (*at == '{' && next)
            rec = receipt_parse(at, (uint64_t)(next + 1 - at), p->path, &ignored);
        at = rec ? next + 1 : sum;
        if (rec && far_find_receipt(out, rec->name))
            receipt_free(rec);
        else if (rec)
            place_add_receipt(out, rec);
    }
}

/* Add a finding for each *.json file in the folder of receipts for which no receipt was parsed. */
static void report_unread_receipts(const struct place *p, const struct far_list *l, const struct place_receipts *out,
                                   struct report *r)
{
    for (int i = 0; i < l->n; i++) {
        const char *path = far_name(l, i);
        char *name, *shown;

        if (!str_starts(path, RECEIPT_FOLDER "/") || !str_ends(path, ".json"))
            continue;
        name = path_base(path);
        name[strlen(name) - strlen(".json")] = '\0';
        shown = far_path(p, path);
        if (!far_find_receipt(out, name))
            report_add(r, SEV_ERROR, "receipt", shown, ERR_NO_BYTE, NULL,
                       "is not a receipt of a backup, or is damaged");
        free(shown);
        free(name);
    }
}

/* Add the receipts in the files of RECEIPT_FOLDER whose names match `pattern`. */
static int read_receipt_files(const struct place *p, const char *pattern, struct place_receipts *out, struct err *e)
{
    char *folder = far_path(p, RECEIPT_FOLDER);
    struct strbuf sb = {0};
    struct rclone_call c = { { "cat", "--include", pattern, folder }, .output = &sb, .absent_is_fine = true,
                             .stopped = p->o.stopped };
    int rc = rclone_run(&c, p->path, e);

    if (rc == 0 && sb.buf)
        parse_receipts(p, &sb, out);
    strbuf_free(&sb);
    free(folder);
    return rc < 0 ? -1 : 0;
}

/* Returns true if an interrupted far_replace_receipt() has left a file. */
static bool has_new_receipts(const struct far_list *l)
{
    for (int i = 0; i < l->n; i++)
        if (str_starts(far_name(l, i), RECEIPT_FOLDER "/") && str_ends(far_name(l, i), NEW_RECEIPT))
            return true;
    return false;
}

int far_read_receipts(const struct place *p, const struct far_list *l, struct place_receipts *out,
                      struct report *r, struct err *e)
{
    /* Of two receipts of one backup the first is kept, so the new ones are read first. */
    int rc = has_new_receipts(l) ? read_receipt_files(p, "/*" NEW_RECEIPT, out, e) : 0;

    if (rc == 0)
        rc = read_receipt_files(p, "/*.json", out, e);
    for (int i = 0; i < out->n && rc >= 0; i++) {
        int before = report_count(r, SEV_ERROR);

        check_remote_files(p, l, out->receipt[i], r);
        if (report_count(r, SEV_ERROR) > before)
            out->receipt[i]->intact = false;
    }
    if (rc >= 0)
        report_unread_receipts(p, l, out, r);
    return rc;
}

/* ---- reading back ---- */

static const char *part_name(const struct receipt *rec, int i)
{
    return receipt_is_file(rec->form) ? rec->name : rec->file[i].name;
}

/*
 * Compare the sums that rclone has printed, one "crc32  name" per line, with the receipt. If part i is wrong or
 * missing, bad[i] is set. Returns the number of such parts.
 */
static int compare_sums(const struct receipt *rec, struct strbuf *sb, bool *bad)
{
    struct arena *a = arena_new(0);
    struct names *names = names_new(a);
    char *rest = sb->buf, *line;
    int n = far_parts(rec), n_bad = 0;

    for (int i = 0; i < n; i++) {
        names_add(names, part_name(rec, i), i);
        bad[i] = true;
    }
    while ((line = strsep(&rest, "\n"))) {
        int i = strlen(line) > 10 ? names_find(names, line + 10) : -1;
        char *end;

        if (i >= 0 && strtoul(line, &end, 16) == far_part_crc(rec, i) && end == line + 8)
            bad[i] = false;
    }
    for (int i = 0; i < n; i++)
        n_bad += bad[i];
    arena_free(a);
    return n_bad;
}

char *far_list_text(const struct receipt *rec, const bool *bad)
{
    struct strbuf sb = {0};

    for (int i = 0; i < far_parts(rec); i++)
        if (!bad || bad[i])
            strbuf_addf(&sb, "%s\n", part_name(rec, i));
    return sb.buf ? sb.buf : xstrdup("");
}

int far_read_back(const struct place *p, const struct receipt *rec, bool *bad, struct err *e)
{
    char *folder = receipt_is_file(rec->form) ? xstrdup(p->path) : far_path(p, rec->name);
    char *files = far_list_text(rec, NULL);
    struct strbuf sb = {0};
    struct rclone_call c = { { "hashsum", "crc32", "--download", "--files-from-raw", "-", folder }, .input = files,
                             .output = &sb, .absent_is_fine = true, .stopped = p->o.stopped };
    int rc = rclone_run(&c, p->path, e);

    if (rc >= 0)
        rc = compare_sums(rec, &sb, bad);
    strbuf_free(&sb);
    free(files);
    free(folder);
    return rc;
}
