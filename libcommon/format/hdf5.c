/*
 * hdf5.c - the subset of the HDF5 library that this project uses
 *
 * The properties that are set in the library, and the reasons:
 *   libver latest       object headers with checksums, compact groups, few seeks
 *   alignment 4096      every large dataset can be written with O_DIRECT
 *   metadata block 64K  the tables of many small objects are stored together, not between tensors
 *   early, never fill   space is allocated at once and not filled, so its location is known and nothing is written
 *   twice
 *   no times            the same input gives the same file
 *   no file locking     NFS and Lustre often refuse flock(); files appear by rename anyway
 */
#include "libcommon/format/hdf5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hdf5.h>

#include "libcommon/base/files.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/hdf5_seal.h"

#define META_BLOCK   (64 * 1024)
#define SMALL_BLOCK  (64 * 1024)
#define MAX_NAME     4096               /* maximum length of a path in an external list or a table, in bytes */
#define SUPERBLOCK   48                 /* size of a superblock of version 2 or 3, in bytes */

/* ---- errors ---- */

struct stack_top {
    char text[256];
    int sys;                            /* errno, if the library reports one */
};

static herr_t on_h5_error_frame(unsigned n, const H5E_error2_t *frame, void *ctx)
{
    struct stack_top *top = ctx;
    const char *no = strstr(frame->desc ? frame->desc : "", "errno = ");

    if (n == 0)
        snprintf(top->text, sizeof top->text, "%s", frame->desc ? frame->desc : "no reason given");
    if (no && top->sys == 0)
        top->sys = atoi(no + strlen("errno = "));
    return 0;
}

/* Fill *e from the library's error stack. The innermost frame of this stack describes the failure. */
static void err_h5(struct err *e, const char *path, const char *what)
{
    struct stack_top top = { .text = "no reason given" };

    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, on_h5_error_frame, &top);
    if (top.sys) {
        errno = top.sys;
        err_sys(e, path, "%s", what);
    } else {
        err_data(e, path, ERR_NO_BYTE, "%s: HDF5: %s", what, top.text);
    }
}

/*
 * Initialise the library before its first use, and turn off two defaults. By default the library prints its error
 * stack, but here the caller prints errors. By default it also flushes files again at exit, which crashes if the disk
 * was full. This flush is not needed, because every opened object is closed explicitly.
 */
static void start_library(void)
{
    static bool started;

    if (!started) {
        H5dont_atexit();
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
        started = true;
    }
}

static hid_t access_list(bool write)
{
    hid_t p = H5Pcreate(H5P_FILE_ACCESS);

    H5Pset_file_locking(p, false, true);
    H5Pset_fclose_degree(p, H5F_CLOSE_STRONG);
    if (write) {
        H5Pset_libver_bounds(p, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
        H5Pset_alignment(p, H5_ALIGN, H5_ALIGN);
        H5Pset_meta_block_size(p, META_BLOCK);
        H5Pset_small_data_block_size(p, SMALL_BLOCK);
    }
    return p;
}

/* ---- writing ---- */

struct h5_out {
    char *path;
    hid_t file;
    hid_t group_list, bare_list;        /* creation properties of groups, and creation properties of datasets whose
                                         * storage has not been set yet */
    struct h5_run *tensor;              /* locations of the datasets' bytes, which the seal does not cover */
    int n_tensors, tensor_cap;
    struct err err;
};

static bool broken(const struct h5_out *h)
{
    return h->err.kind != ERR_NONE;
}

static void h5_out_fail(struct h5_out *h, const char *what)
{
    err_h5(&h->err, h->path, what);
}

struct h5_out *h5_create(const char *path)
{
    struct h5_out *h = xcalloc(1, sizeof *h);
    hid_t access, create;

    start_library();
    h->path = xstrdup(path);
    access = access_list(true);
    create = H5Pcreate(H5P_FILE_CREATE);
    h->group_list = H5Pcreate(H5P_GROUP_CREATE);
    h->bare_list = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(create, false);
    H5Pset_obj_track_times(h->group_list, false);
    H5Pset_obj_track_times(h->bare_list, false);
    /*
     * The root group has dozens of attributes. Without this call, more than 8 attributes would be stored in a heap and
     * an index.
     */
    H5Pset_attr_phase_change(create, 1000, 0);
    H5Pset_fill_time(h->bare_list, H5D_FILL_TIME_NEVER);
    h->file = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
    if (h->file < 0)
        h5_out_fail(h, "cannot create");
    H5Pclose(create);
    H5Pclose(access);
    return h;
}

void h5_abandon(struct h5_out *h)
{
    if (!h)
        return;
    if (h->file >= 0)
        H5Fclose(h->file);
    H5Pclose(h->group_list);
    H5Pclose(h->bare_list);
    free(h->tensor);
    free(h->path);
    free(h);
}

int h5_finish(struct h5_out *h, struct err *e)
{
    int rc;

    if (!broken(h)) {
        if (H5Fclose(h->file) < 0)
            h5_out_fail(h, "cannot write");
        h->file = -1;
    }
    rc = broken(h) ? -1 : h5_seal_put(h->path, h->tensor, h->n_tensors, &h->err);
    if (rc < 0 && e->kind == ERR_NONE)
        *e = h->err;
    h5_abandon(h);
    return rc;
}

static hid_t h5_object_id(const struct h5_out *h, int64_t object)
{
    return object == H5_TOP ? h->file : (hid_t)object;
}

int64_t h5_new_group(struct h5_out *h, int64_t in, const char *name)
{
    hid_t id;

    if (broken(h))
        return -1;
    id = H5Gcreate2(h5_object_id(h, in), name, H5P_DEFAULT, h->group_list, H5P_DEFAULT);
    if (id < 0)
        h5_out_fail(h, "cannot make a group");
    return id;
}

static hid_t new_space(int ndim, const int64_t *shape)
{
    hsize_t dims[H5_MAX_DIM];

    for (int i = 0; i < ndim; i++)
        dims[i] = (hsize_t)shape[i];
    return H5Screate_simple(ndim, dims, NULL);
}

static int64_t make_dataset(struct h5_out *h, const struct h5_new *d, hid_t type, hid_t space, hid_t list)
{
    hid_t id = H5Dcreate2(h5_object_id(h, d->in), d->name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);

    if (id < 0)
        h5_out_fail(h, "cannot make a dataset");
    return id;
}

/* Record the location of a new dataset's bytes. */
static void record_dataset_place(struct h5_out *h, int64_t id)
{
    uint64_t len = H5Dget_storage_size(id);
    haddr_t at = H5Dget_offset(id);

    if (broken(h) || len == 0)
        return;
    if (at == HADDR_UNDEF) {
        h5_out_fail(h, "a dataset has no place");
        return;
    }
    ARRAY_ROOM(h->tensor, h->tensor_cap, h->n_tensors + 1);
    h->tensor[h->n_tensors++] = (struct h5_run){ at, len };
}

int64_t h5_new_dataset(struct h5_out *h, const struct h5_new *d)
{
    hid_t list, space;
    int64_t id;

    if (broken(h))
        return -1;
    list = H5Pcopy(h->bare_list);
    space = new_space(d->ndim, d->shape);
    H5Pset_layout(list, H5D_CONTIGUOUS);
    H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
    id = make_dataset(h, d, H5T_IEEE_F32LE, space, list);
    record_dataset_place(h, id);
    H5Sclose(space);
    H5Pclose(list);
    return id;
}

int64_t h5_new_external(struct h5_out *h, const struct h5_new *d, const struct h5_segment *segment, int n)
{
    hid_t list, space;
    int64_t id = -1;

    if (broken(h))
        return -1;
    list = H5Pcopy(h->bare_list);
    space = new_space(d->ndim, d->shape);
    for (int i = 0; i < n && !broken(h); i++)
        if (H5Pset_external(list, segment[i].path, (off_t)segment[i].at, segment[i].len) < 0)
            h5_out_fail(h, "cannot name an external file");
    if (!broken(h))
        id = make_dataset(h, d, H5T_IEEE_F32LE, space, list);
    H5Sclose(space);
    H5Pclose(list);
    return id;
}

/* Map columns [at, at + width) of the virtual dataset `space` to the whole dataset `source`. */
static void map_column(struct h5_out *h, hid_t list, hid_t space, const char *source, int64_t at, int64_t width)
{
    hsize_t start[H5_MAX_DIM] = { 0 }, count[H5_MAX_DIM];
    int ndim = H5Sget_simple_extent_dims(space, count, NULL);
    hid_t part_space;

    start[1] = (hsize_t)at;
    count[1] = (hsize_t)width;
    part_space = H5Screate_simple(ndim, count, NULL);
    /* The file name "." means the file that contains the virtual dataset, even after it is renamed. */
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Pset_virtual(list, space, ".", source, part_space) < 0)
        h5_out_fail(h, "cannot map a column");
    H5Sclose(part_space);
}

int64_t h5_new_columns(struct h5_out *h, const struct h5_new *d, const char *const *source, const int64_t *width,
                       int n)
{
    hid_t list, space;
    int64_t id = -1, at = 0;

    if (broken(h))
        return -1;
    list = H5Pcopy(h->bare_list);
    space = new_space(d->ndim, d->shape);
    for (int i = 0; i < n && !broken(h); at += width[i++])
        map_column(h, list, space, source[i], at, width[i]);
    H5Sselect_all(space);
    if (!broken(h))
        id = make_dataset(h, d, H5T_IEEE_F32LE, space, list);
    H5Sclose(space);
    H5Pclose(list);
    return id;
}

void h5_done(struct h5_out *h, int64_t object)
{
    if (object > H5_TOP && !broken(h) && H5Oclose((hid_t)object) < 0)
        h5_out_fail(h, "cannot close an object");
}

/* Write one column of a table. d must have one dimension. */
static void put_column(struct h5_out *h, const struct h5_new *d, hid_t type, hid_t mem_type, const void *v)
{
    int64_t id;
    hid_t space;

    if (broken(h))
        return;
    space = new_space(1, d->shape);
    id = make_dataset(h, d, type, space, h->bare_list);
    if (id >= 0 && d->shape[0] > 0 && H5Dwrite(id, mem_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) < 0)
        h5_out_fail(h, "cannot write a table");
    h5_done(h, id);
    H5Sclose(space);
}

static hid_t string_type(size_t size, H5T_str_t pad)
{
    hid_t t = H5Tcopy(H5T_C_S1);

    H5Tset_size(t, size);
    H5Tset_strpad(t, pad);
    H5Tset_cset(t, H5T_CSET_UTF8);
    return t;
}

void h5_put_strings(struct h5_out *h, int64_t in, const char *name, const char *const *v, int n)
{
    size_t width = 1;
    char *cells;
    hid_t type;

    for (int i = 0; i < n; i++)
        width = strlen(v[i]) > width ? strlen(v[i]) : width;
    cells = xcalloc((size_t)n + 1, width);
    for (int i = 0; i < n; i++)
        memcpy(cells + (size_t)i * width, v[i], strlen(v[i]));
    type = string_type(width, H5T_STR_NULLPAD);
    put_column(h, &(struct h5_new){ in, name, 1, &(int64_t){ n } }, type, type, cells);
    H5Tclose(type);
    free(cells);
}

void h5_put_u64s(struct h5_out *h, int64_t in, const char *name, const uint64_t *v, int n)
{
    put_column(h, &(struct h5_new){ in, name, 1, &(int64_t){ n } }, H5T_STD_U64LE, H5T_NATIVE_UINT64, v);
}

void h5_put_link(struct h5_out *h, const char *name, const char *file)
{
    if (!broken(h) && H5Lcreate_external(file, "/", h->file, name, H5P_DEFAULT, H5P_DEFAULT) < 0)
        h5_out_fail(h, "cannot make a link");
}

static void set_attribute(struct h5_out *h, int64_t object, const char *name, hid_t type, hid_t mem_type,
                          const void *v)
{
    hid_t space, id;

    if (broken(h))
        return;
    space = H5Screate(H5S_SCALAR);
    id = H5Acreate2(h5_object_id(h, object), name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0 || H5Awrite(id, mem_type, v) < 0)
        h5_out_fail(h, "cannot write an attribute");
    if (id >= 0)
        H5Aclose(id);
    H5Sclose(space);
}

/* The string has a fixed length, because a string of variable length would be stored in a heap without a checksum. */
void h5_set_str(struct h5_out *h, int64_t object, const char *name, const char *v)
{
    hid_t type = string_type(strlen(v) + 1, H5T_STR_NULLTERM);

    set_attribute(h, object, name, type, type, v);
    H5Tclose(type);
}

void h5_set_int(struct h5_out *h, int64_t object, const char *name, int64_t v)
{
    set_attribute(h, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &v);
}

void h5_set_double(struct h5_out *h, int64_t object, const char *name, double v)
{
    set_attribute(h, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &v);
}

/* ---- reading ---- */

struct h5_in {
    char *path;
    uint64_t size;
    hid_t file;
};

static int report_h5_error(const struct h5_in *h, const char *object, struct err *e, const char *what)
{
    char text[512];

    snprintf(text, sizeof text, "%.300s: %s", object, what);
    err_data(e, h->path, ERR_NO_BYTE, "%s", text);
    return -1;
}

/*
 * Check magic, superblock, size and seal of the file before the library opens it. Superblocks older than version 2 are
 * refused, because this project never writes them.
 */
static int check_outside(struct h5_in *h, struct err *e)
{
    static const uint8_t magic[8] = { 0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n' };
    uint8_t sb[SUPERBLOCK];
    struct stat st;
    int rc = -1, fd = open(h->path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0) {
        err_sys(e, h->path, "cannot open");
        goto out;
    }
    h->size = (uint64_t)st.st_size;
    if (h->size < SUPERBLOCK || pread(fd, sb, sizeof sb, 0) != SUPERBLOCK ||
        memcmp(sb, magic, sizeof magic) != 0) {
        err_data(e, h->path, 0, "no HDF5 file");
        goto out;
    }
    if ((sb[8] != 2 && sb[8] != 3) || sb[9] != 8 || sb[10] != 8) {
        err_data(e, h->path, 8, "HDF5 superblock version %d with %d-byte addresses, expected 2 or 3 with 8",
                 sb[8], sb[9]);
        goto out;
    }
    if (get_le64(sb + 12) != 0) {
        err_data(e, h->path, 12, "HDF5 base address %llu, expected 0", (unsigned long long)get_le64(sb + 12));
        goto out;
    }
    if (get_le64(sb + 28) > h->size) {
        err_data(e, h->path, 28, "truncated: the superblock records %llu bytes, has %llu",
                 (unsigned long long)get_le64(sb + 28), (unsigned long long)h->size);
        goto out;
    }
    rc = h5_seal_check(fd, h->path, h->size, get_le64(sb + 28), e);
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

struct h5_in *h5_open(const char *path, struct err *e)
{
    struct h5_in *h = xcalloc(1, sizeof *h);
    hid_t access;

    start_library();
    h->path = xstrdup(path);
    h->file = -1;
    if (check_outside(h, e) < 0)
        goto fail;
    access = access_list(false);
    h->file = H5Fopen(path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (h->file < 0) {
        err_h5(e, path, "damaged HDF5 file");
        goto fail;
    }
    return h;
fail:
    h5_close(h);
    return NULL;
}

void h5_close(struct h5_in *h)
{
    if (!h)
        return;
    if (h->file >= 0)
        H5Fclose(h->file);
    free(h->path);
    free(h);
}

const char *h5_path(const struct h5_in *h)
{
    return h->path;
}

struct name_list {
    struct arena *arena;
    const char **name;
    int n, cap;
};

static herr_t add_h5_link_name(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    struct name_list *l = ctx;
    char *copy;

    (void)group, (void)info;
    if (name[0] == '.')
        return 0;
    copy = arena_strndup(l->arena, name, strlen(name));
    if (!copy)
        return -1;
    ARRAY_ROOM(l->name, l->cap, l->n + 1);
    l->name[l->n++] = copy;
    return 0;
}

static int compare_h5_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int h5_list(struct h5_in *h, const char *group, struct arena *a, const char ***names, struct err *e)
{
    struct name_list l = { .arena = a };
    hid_t id = H5Gopen2(h->file, group, H5P_DEFAULT);
    int rc = -1;

    if (id < 0) {
        err_h5(e, h->path, "no such group");
        return -1;
    }
    if (H5Literate(id, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, add_h5_link_name, &l) < 0) {
        err_h5(e, h->path, "cannot list a group");
        goto out;
    }
    *names = arena_alloc(a, (size_t)(l.n + 1) * sizeof **names);
    if (!*names) {
        report_h5_error(h, group, e, "too many names");
        goto out;
    }
    if (l.n > 0) {
        memcpy(*names, l.name, (size_t)l.n * sizeof **names);
        qsort(*names, (size_t)l.n, sizeof **names, compare_h5_names);
    }
    rc = l.n;
out:
    H5Gclose(id);
    free(l.name);
    return rc;
}

bool h5_has(struct h5_in *h, const char *path)
{
    return H5Lexists(h->file, path, H5P_DEFAULT) > 0;
}

bool h5_link_file(struct h5_in *h, const char *name, char *buf, size_t size)
{
    H5L_info_t info;
    char value[2 * MAX_NAME];
    const char *file, *object;
    unsigned flags;

    if (H5Lget_info(h->file, name, &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_EXTERNAL ||
        info.u.val_size > sizeof value ||
        H5Lget_val(h->file, name, value, sizeof value, H5P_DEFAULT) < 0 ||
        H5Lunpack_elink_val(value, info.u.val_size, &flags, &file, &object) < 0 ||
        strlen(file) >= size)
        return false;
    strcpy(buf, file);
    return true;
}

static int inspect_h5_shape(struct h5_in *h, const char *path, hid_t id, struct h5_dataset *d, struct err *e)
{
    hid_t space = H5Dget_space(id), type = H5Dget_type(id);
    hsize_t dims[H5_MAX_DIM];
    int rc = -1;

    if (space < 0 || type < 0 || H5Tequal(type, H5T_IEEE_F32LE) <= 0) {
        report_h5_error(h, path, e, "not a dataset of little-endian 32-bit floats");
        goto out;
    }
    d->ndim = H5Sget_simple_extent_ndims(space);
    if (d->ndim < 1 || d->ndim > H5_MAX_DIM || H5Sget_simple_extent_dims(space, dims, NULL) != d->ndim) {
        report_h5_error(h, path, e, "a dataset of 1 to " TENSOR_MAX_DIM_TEXT " dimensions was expected");
        goto out;
    }
    for (int i = 0; i < d->ndim; i++)
        d->shape[i] = (int64_t)dims[i];         /* a length that does not fit into int64_t becomes negative */
    if (shape_bytes(d->ndim, d->shape, DTYPE_F32) < 0) {
        report_h5_error(h, path, e, "its size overflows");
        goto out;
    }
    d->len = (uint64_t)shape_bytes(d->ndim, d->shape, DTYPE_F32);
    rc = 0;
out:
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return rc;
}

static int inspect_h5_segments(struct h5_in *h, const char *path, hid_t list, struct arena *a, struct h5_dataset *d,
                               struct err *e)
{
    int n = H5Pget_external_count(list);
    uint64_t sum = 0;

    d->storage = H5_EXTERNAL;
    d->n_segments = n;
    d->segment = arena_alloc(a, (size_t)n * sizeof *d->segment);
    if (!d->segment)
        return report_h5_error(h, path, e, "too many external files");
    for (int i = 0; i < n; i++) {
        char name[MAX_NAME] = "";
        off_t at = 0;
        hsize_t len = 0;

        if (H5Pget_external(list, (unsigned)i, sizeof name, name, &at, &len) < 0)
            return report_h5_error(h, path, e, "damaged list of external files");
        if (name[sizeof name - 1] || !name[0] || at < 0 || len == 0 || !add_u64(sum, len, &sum))
            return report_h5_error(h, path, e, "an external file without name, place or length");
        d->segment[i].path = arena_strndup(a, name, strlen(name));
        d->segment[i].at = (uint64_t)at;
        d->segment[i].len = len;
        if (!d->segment[i].path)
            return report_h5_error(h, path, e, "too many external files");
    }
    return sum == d->len ? 0 : report_h5_error(h, path, e, "its external runs do not add up to its size");
}

static int inspect_h5_columns(struct h5_in *h, const char *path, hid_t list, struct arena *a,
                              struct h5_dataset *d, struct err *e)
{
    size_t n = 0;

    d->storage = H5_COLUMNS;
    if (H5Pget_virtual_count(list, &n) < 0 || n == 0 || n > H5_MAX_SEGMENTS)
        return report_h5_error(h, path, e, "damaged virtual dataset");
    d->n_columns = (int)n;
    d->column = arena_alloc(a, n * sizeof *d->column);
    if (!d->column)
        return report_h5_error(h, path, e, "too many columns");
    for (size_t i = 0; i < n; i++) {
        char file[8] = "", name[MAX_NAME] = "";

        if (H5Pget_virtual_filename(list, i, file, sizeof file) < 0 || strcmp(file, ".") != 0 ||
            H5Pget_virtual_dsetname(list, i, name, sizeof name) < 0 || !name[0] || name[sizeof name - 1])
            return report_h5_error(h, path, e, "a virtual dataset over other things than datasets of this file");
        d->column[i] = arena_strndup(a, name, strlen(name));
        if (!d->column[i])
            return report_h5_error(h, path, e, "too many columns");
    }
    return 0;
}

static int inspect_h5_storage(struct h5_in *h, const char *path, hid_t id, struct arena *a,
                              struct h5_dataset *d, struct err *e)
{
    hid_t list = H5Dget_create_plist(id);
    H5D_layout_t layout = list < 0 ? H5D_LAYOUT_ERROR : H5Pget_layout(list);
    int rc = -1;

    if (layout == H5D_VIRTUAL) {
        rc = inspect_h5_columns(h, path, list, a, d, e);
    } else if (layout != H5D_CONTIGUOUS) {
        report_h5_error(h, path, e, "neither contiguous nor external nor virtual");
    } else if (H5Pget_external_count(list) > 0) {
        rc = inspect_h5_segments(h, path, list, a, d, e);
    } else {
        haddr_t at = d->len ? H5Dget_offset(id) : 0;

        d->storage = H5_CONTIGUOUS;
        d->at = at;
        if (at == HADDR_UNDEF || at > h->size || d->len > h->size - at)
            report_h5_error(h, path, e, "its bytes are not inside the file");
        else
            rc = 0;
    }
    if (list >= 0)
        H5Pclose(list);
    return rc;
}

int h5_inspect_dataset(struct h5_in *h, const char *path, struct arena *a, struct h5_dataset *d, struct err *e)
{
    hid_t id = H5Dopen2(h->file, path, H5P_DEFAULT);
    int rc = -1;

    memset(d, 0, sizeof *d);
    if (id < 0)
        return report_h5_error(h, path, e, "cannot be opened as a dataset");
    if (inspect_h5_shape(h, path, id, d, e) == 0)
        rc = inspect_h5_storage(h, path, id, a, d, e);
    H5Dclose(id);
    return rc;
}

/* An open one-dimensional dataset, which is one column of a table. */
struct column {
    const char *path;
    hid_t id;
    hsize_t n;
};

static int open_column(struct h5_in *h, const char *path, struct column *c, struct err *e)
{
    hid_t id = H5Dopen2(h->file, path, H5P_DEFAULT);
    hid_t space = id < 0 ? -1 : H5Dget_space(id);
    bool good = space >= 0 && H5Sget_simple_extent_ndims(space) == 1 &&
                H5Sget_simple_extent_dims(space, &c->n, NULL) == 1 && c->n <= h->size;

    if (space >= 0)
        H5Sclose(space);
    c->path = path;
    c->id = id;
    if (good)
        return 0;
    report_h5_error(h, path, e, "not a table column");
    if (id >= 0)
        H5Dclose(id);
    return -1;
}

/* Read a column of fixed-length strings as NUL-terminated strings. */
static int read_strings(struct h5_in *h, const struct column *c, struct arena *a, const char ***v, struct err *e)
{
    hid_t type = H5Dget_type(c->id);
    hsize_t n = c->n;
    size_t width = 0;
    char *cells = NULL;
    int rc = -1;

    if (type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0)
        width = H5Tget_size(type);
    /*
     * A table is a part of the file, so it cannot be longer than the file. This limit also prevents n * width from
     * overflowing.
     */
    if (width == 0 || width > MAX_NAME || n * width > h->size) {
        report_h5_error(h, c->path, e, "not a column of short strings");
        goto out;
    }
    cells = xcalloc(n + 1, width);
    *v = arena_alloc(a, (n + 1) * sizeof **v);
    if (!*v || (n > 0 && H5Dread(c->id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, cells) < 0)) {
        report_h5_error(h, c->path, e, "cannot be read");
        goto out;
    }
    for (hsize_t i = 0; i < n; i++) {
        (*v)[i] = arena_strndup(a, cells + i * width, strnlen(cells + i * width, width));
        if (!(*v)[i]) {
            report_h5_error(h, c->path, e, "too long");
            goto out;
        }
    }
    rc = (int)n;
out:
    if (type >= 0)
        H5Tclose(type);
    free(cells);
    return rc;
}

int h5_get_strings(struct h5_in *h, const char *path, struct arena *a, const char ***v, struct err *e)
{
    struct column c = {0};
    int rc;

    if (open_column(h, path, &c, e) < 0)
        return -1;
    rc = c.n > INT32_MAX ? report_h5_error(h, path, e, "too long") : read_strings(h, &c, a, v, e);
    H5Dclose(c.id);
    return rc;
}

int h5_get_u64s(struct h5_in *h, const char *path, struct arena *a, uint64_t **v, struct err *e)
{
    struct column c = {0};
    hid_t type;
    int rc = -1;

    if (open_column(h, path, &c, e) < 0)
        return -1;
    type = H5Dget_type(c.id);
    if (type < 0 || H5Tequal(type, H5T_STD_U64LE) <= 0 || c.n > INT32_MAX) {
        report_h5_error(h, path, e, "not a column of 64-bit numbers");
    } else {
        *v = arena_alloc(a, (c.n + 1) * sizeof **v);
        if (!*v || (c.n > 0 && H5Dread(c.id, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, *v) < 0))
            report_h5_error(h, path, e, "cannot be read");
        else
            rc = (int)c.n;
    }
    if (type >= 0)
        H5Tclose(type);
    H5Dclose(c.id);
    return rc;
}

/* Open a scalar attribute of class `cls`, and set *type to its type. Returns -1 if there is no such attribute. */
static hid_t open_attribute(struct h5_in *h, const char *object, const char *name, H5T_class_t cls,
                            hid_t *type)
{
    hid_t id = H5Aopen_by_name(h->file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = id < 0 ? -1 : H5Aget_space(id);
    bool good;

    *type = id < 0 ? -1 : H5Aget_type(id);
    good = space >= 0 && *type >= 0 && H5Tget_class(*type) == cls &&
           H5Sget_simple_extent_npoints(space) == 1;
    if (space >= 0)
        H5Sclose(space);
    if (good)
        return id;
    if (*type >= 0)
        H5Tclose(*type);
    if (id >= 0)
        H5Aclose(id);
    return -1;
}

bool h5_get_str(struct h5_in *h, const char *object, const char *name, char *buf, size_t size)
{
    hid_t type, id = open_attribute(h, object, name, H5T_STRING, &type);
    bool good;

    if (id < 0)
        return false;
    good = H5Tis_variable_str(type) == 0 && H5Tget_size(type) <= size && H5Aread(id, type, buf) >= 0;
    if (good)
        buf[H5Tget_size(type) - 1] = '\0';
    H5Tclose(type);
    H5Aclose(id);
    return good;
}

static bool get_number(struct h5_in *h, const char *object, const char *name, H5T_class_t cls,
                       hid_t mem_type, void *v)
{
    hid_t type, id = open_attribute(h, object, name, cls, &type);
    bool good;

    if (id < 0)
        return false;
    good = H5Tget_size(type) <= 8 && H5Aread(id, mem_type, v) >= 0;
    H5Tclose(type);
    H5Aclose(id);
    return good;
}

bool h5_get_int(struct h5_in *h, const char *object, const char *name, int64_t *v)
{
    return get_number(h, object, name, H5T_INTEGER, H5T_NATIVE_INT64, v);
}

bool h5_get_double(struct h5_in *h, const char *object, const char *name, double *v)
{
    return get_number(h, object, name, H5T_FLOAT, H5T_NATIVE_DOUBLE, v);
}
