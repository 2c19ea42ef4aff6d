/*
 * folder_file.h - describe a file that is to be written: its containers, and where tensors are in them
 *
 * A file is a sequence of boxes. A box is a container: a .pt, whose tree determines its storages, or plain bytes with
 * gaps (a safetensors file is a header and a gap for each tensor). A storage is a run of bytes inside a box that is not
 * written with the box, but usually by items of a plan.
 *
 * A layout describes a file (struct folder_desc). The description is made twice with the same result: when the file is
 * laid out, and when its headers are written. Between the two, only offsets, lengths and CRCs are kept (struct
 * folder_file). Until its headers are written, a .pt file has no directory and cannot be read.
 */
#ifndef SHARDKIT_WRITE_FOLDER_FILE_H
#define SHARDKIT_WRITE_FOLDER_FILE_H

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/plan.h"
#include "libcommon/plan/tmap_slice.h"

struct folder_storage {
    uint64_t len;
    uint64_t at;                /* offset in a box of plain bytes; for a .pt it is computed */
    const void *bytes;          /* [len]: contents of the storage; NULL: items of the plan write the contents. Bytes
                                 * that no item writes are zeros */
};

struct folder_box {
    const char *prefix;         /* for a .pt: name of the archive; NULL for plain bytes */
    const struct pk *root;      /* for a .pt file: its tree, whose tensors (pt_new_tensor()) refer to the storages of
                                 * the box */
    struct pt_image *image;     /* instead of `root`: a .pt that the caller has made */
    /* used instead of `root`: a zip that the caller has made; its records are the storages */
    struct zip_layout *zip;
    struct zip_out *record;     /* [n]: the records of `zip`, in which the CRCs are set */
    const void *head;           /* for plain bytes: the bytes at the beginning of the box */
    uint64_t head_len, size;    /* for plain bytes: length of `head`; size of the whole box */
    int n;
    struct folder_storage *storage;     /* [n] */
};

/*
 * A place in the folder. `storage` counts the storages of all boxes of the file. If `file` is -1, the bytes are hashed
 * but not written.
 */
struct folder_place {
    int file, storage;
    uint64_t at;                /* offset in the storage, in bytes */
};

/*
 * A range of a tensor map that is written to a place. A fill is a plain copy if all members except those that describe
 * the range are zero. If the range belongs to no tensor of the result, `param` and `tensor` must be -1.
 */
struct folder_fill {
    const struct tmap *map;
    uint64_t from, len;         /* range of bytes of the map */
    enum plan_op op;
    uint64_t transpose_row;     /* as in struct plan_item */
    const char *name;           /* name in messages; must be valid as long as the plan */
    struct folder_place to;
    /*
     * Used for a range whose columns are distributed: the places that receive the columns, and the number of bytes of a
     * row that each place receives.
     */
    int n_outs;
    const struct folder_place *out;
    uint64_t part;
    int param;                  /* index of the source's parameter to which the range belongs; -1: none */
    enum state state;
    /* another fill reads the same elements, and counts the elements on which copies differ */
    bool repeated;
    /*
     * Index of the tensor of the result whose digest includes these bytes; -1: none. The bytes begin at byte `in` of
     * this tensor. If row_len is set, the tensor has rows of row_len bytes, and the fill has some columns of the
     * tensor. Each column_len bytes of the map are then the bytes of one row that begin at column_at. The first of
     * these rows is row 0.
     */
    int tensor;
    uint64_t in, row_len, column_at, column_len;
    const struct tensor_runs *part_of;  /* if not NULL: the bytes are this part of the tensor in row-major order, and
                                         * `in` is 0 */
};

struct folder_desc {
    struct arena *arena;        /* holds everything below; freed together with the description */
    /* Arena for the maps of fills. It must exist until the plan has run. NULL: the caller needs no fills. */
    struct arena *keep;
    const char *name;           /* path of the file in the folder: "zero/3.x/fp32.pt" */
    int n_boxes, cap_boxes;
    struct folder_box *box;
    int n_fills, cap_fills;
    struct folder_fill *fill;
};
void folder_desc_init(struct folder_desc *d, struct arena *keep);
void folder_desc_free(struct folder_desc *d);
/*
 * Append a box. The data to which the box refers must remain valid until the description is freed. They can be in its
 * arena, for example.
 */
void folder_add_box(struct folder_desc *d, const struct folder_box *b);
/* Append a fill. Does nothing if the caller needs no fills (d->keep is NULL). */
void folder_add_fill(struct folder_desc *d, const struct folder_fill *f);

/* A file whose offsets have been computed. */
struct folder_file {
    char *name;
    int dst;                    /* number of the destination in the plan; -1: no item writes to the file */
    uint64_t size;              /* 0: the file is not created */
    int n_boxes;
    uint64_t *box_at;           /* [n_boxes + 1]: offsets of the boxes, followed by the size of the file */
    int n;
    struct {
        uint64_t at, len;       /* range of the storage in the file */
        struct crc_sum sum;     /* CRC of the storage, combined from the CRCs of items */
        bool given;             /* the contents are in the description, so no item writes them */
    } *storage;                 /* [n] */
};
/* Return the size of a box. */
uint64_t folder_box_size(const struct folder_box *b);
/* Return the size of a file with this description. */
uint64_t folder_file_size(const struct folder_desc *d);
/* Lay out a file. The result has dst -1 and empty sums. Its tables are allocated in arena `a`. */
struct folder_file folder_file_lay_out(struct arena *a, const struct folder_desc *d);
/*
 * Write all bytes of the file in `dir` that items of the plan do not write. `d` must be the same description as for
 * folder_file_lay_out(), and all sums must be complete. If `sync` is true, the file is synced to disk.
 */
MUST_CHECK int folder_file_seal(const char *dir, const struct folder_file *f, const struct folder_desc *d, bool sync,
                                struct err *e);
/*
 * Create a file of this size without reserving disk space. This is used in a rehearsal, and on tmpfs. On tmpfs,
 * reserving the space of a file keeps one thread busy, whereas several writers allocate the space in parallel.
 */
MUST_CHECK int folder_make_hollow(const char *path, uint64_t size, struct err *e);
/* Write a small file of the folder `dir` as a whole, e.g. a configuration. */
MUST_CHECK int folder_write_small(const char *dir, const char *name, const void *bytes, uint64_t len, struct err *e);

#endif
