/*
 * shardkit.h - read and verify checkpoints of any layout from other programs
 *
 * The interface of libshardkit.so: open a checkpoint, list its tensors as `ckpt-inspect ls` does, read them into
 * memory of the caller, find out where their bytes lie, and verify as `ckpt-inspect verify` does. Nothing is written.
 *
 *     struct sk_error e;
 *     struct sk_checkpoint *c = sk_open("global_step20", NULL, &e);
 *     for (int64_t i = 0; c && i < sk_count(c); i++)
 *         puts(sk_tensor(c, i)->name);
 *     sk_close(c);
 *
 * Errors    A function that can fail has `struct sk_error *` last; it may be NULL. Such a function returns NULL or -1
 *           after filling it with a code and one sentence of UTF-8 or of the bytes of a file name. The library prints
 *           nothing, changes no signal handler and does not end the process. There is one exception: if memory is
 *           exhausted, it prints a line and calls abort().
 * Ownership Strings and structs that a function returns belong to the object they were asked of and are valid until
 *           that is closed or freed. Strings that are passed in are copied or used during the call only.
 * Threads   Every function may be called from any thread. sk_open() and sk_verify() run one at a time per process; a
 *           second call waits. Several threads may use one checkpoint at a time, and reads run in parallel. sk_close()
 *           and sk_verification_free() may be called once, when no other thread uses the object.
 * fork()    A child may read from checkpoints that its parent opened. It must not call sk_open() or sk_verify() if its
 *           parent had called them: OpenMP's threads do not exist in the child.
 * Arguments A NULL where none is allowed, and a number that is out of range, make the function fail with
 *           SK_ERROR_USAGE. A function without `struct sk_error *` returns 0 or NULL.
 * Files     An open checkpoint keeps a descriptor of each of its files, and uses at most an eighth of the
 *           descriptors that the process may have. The program may change its working directory, and files may be
 *           renamed or removed. If a file has to be opened again and has changed, that is an error.
 * Process   sk_open() raises the soft limit of open files to the hard limit.
 * ABI       A library with the same SHARDKIT_ABI has all functions below. Members are only ever added at the end of a
 *           struct. Options carry their size, so a program that was compiled with an earlier header keeps working.
 */
#ifndef SHARDKIT_H
#define SHARDKIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHARDKIT_ABI 1

int sk_abi(void);                       /* SHARDKIT_ABI of the library */
const char *sk_version(void);           /* its release: "0.1.0" */

enum {
    SK_ERROR_SYSTEM = 1,                /* a system call failed: `system` has errno */
    SK_ERROR_DATA = 2,                  /* a file is damaged or missing, or there is no such tensor */
    SK_ERROR_USAGE = 3,                 /* an argument is invalid */
    SK_ERROR_STOPPED = 4,               /* sk_verify_options.stop was set */
};

struct sk_error {
    int code;                           /* 0 or one of the above */
    int system;                         /* errno with SK_ERROR_SYSTEM, else 0 */
    char text[1024];                    /* "global_step20/layer_03-model_00-model_states.pt: at byte 66: ..." */
};

/* ---- findings: what opening or verification reports about files ---- */

enum { SK_NOTE, SK_WARNING, SK_ERROR };

#define SK_NO_BYTE UINT64_MAX

struct sk_finding {
    int severity;
    const char *code;                   /* a word that stays: "crc", "missing_file" (docs/formats.md lists them) */
    const char *text;                   /* the whole sentence, as printed: "FILE: at byte N: parameter x: ..." */
    const char *file;                   /* NULL: about the whole checkpoint */
    uint64_t at;                        /* offset in the file, or SK_NO_BYTE */
    const char *parameter;              /* NULL: not about one parameter */
};

/* ---- open ---- */

struct sk_checkpoint;

/* How tensor-parallel copies of one parameter that differ are merged into one tensor. */
enum { SK_REPLICAS_AVERAGE, SK_REPLICAS_FIRST, SK_REPLICAS_MAJORITY, SK_REPLICAS_FAIL };

/* Zero means the default for every member but `size`. */
struct sk_open_options {
    size_t size;                        /* sizeof(struct sk_open_options) */
    const char *model;                  /* prefix of the model's names, if a checkpoint holds several models */
    int damaged;                        /* 1: open what is readable, and report the rest by sk_findings() */
    int replicas;                       /* SK_REPLICAS_* */
    int threads;                        /* for opening files, 1 to 1024; 0: 16 */
};

/*
 * Open a checkpoint: a folder of any layout, a folder whose file `latest` names one, a tar archive of one, a model
 * folder, or a single .pt or .h5 file. Only tables are read. Returns NULL on failure. By default the first error in
 * the files is a failure.
 */
struct sk_checkpoint *sk_open(const char *path, const struct sk_open_options *o, struct sk_error *e);
void sk_close(struct sk_checkpoint *c);                 /* NULL is allowed */

struct sk_info {
    const char *path;                   /* the folder or file that was opened, `latest` resolved */
    const char *layout;                 /* "deepspeed", "dcp", "hf", ...; "file" for a single file */
    int64_t iteration;                  /* -1: unknown */
};
const struct sk_info *sk_info(const struct sk_checkpoint *c);

/* Findings of sk_open(): warnings and notes, and with `damaged` errors. *n receives their number; n may be NULL. */
const struct sk_finding *sk_findings(const struct sk_checkpoint *c, int *n);

/* ---- tensors ---- */

enum {
    SK_PARAMETER,                       /* a state of a parameter of the model; all tensors of a single file */
    SK_BUFFER,                          /* a buffer of the model */
    SK_OTHER,                           /* any other tensor: a step counter, the state of a random generator */
    SK_STACK,                           /* a tensor of the files whose rows are listed as states of parameters */
};

struct sk_tensor {
    int kind;
    const char *name;                   /* of a parameter: the same for all of its states */
    /*
     * Of a parameter: "bf16" (the weights that the model computes with, whatever their type), "fp32" (the masters),
     * "exp_avg" or "exp_avg_sq". NULL for other tensors.
     */
    const char *state;
    /*
     * Type of the elements as in safetensors: "f32", "bf16", "i64", "f8_e4m3". An element is what torch counts as one;
     * for packed types such as "f4x2" it is the byte that holds several numbers. Bytes are little-endian.
     */
    const char *dtype;
    int item_size;                      /* bytes per element */
    int ndim;                           /* 0 .. 16 */
    const int64_t *shape;               /* outermost first: the merged tensor, row-major */
    int64_t elements;
    uint64_t bytes;                     /* elements * item_size */
};

/* Tensors are numbered from 0 in the order of the model: the states of a parameter are adjacent, others follow. */
int64_t sk_count(const struct sk_checkpoint *c);
/* Returns NULL if i is not a number of a tensor. */
const struct sk_tensor *sk_tensor(const struct sk_checkpoint *c, int64_t i);
/*
 * Find a tensor by any name that `ckpt-inspect cat` accepts: that of a parameter, NAME:STATE or NAME.STATE, or the
 * name in the files. `state` selects one of a parameter's states. If it is NULL and the name implies none, it is the
 * master, else the first state there is. Returns the number, or -1 with SK_ERROR_DATA.
 */
int64_t sk_find(struct sk_checkpoint *c, const char *name, const char *state, struct sk_error *e);

/*
 * Read elements [first, first + n) of tensor i, in row-major order, into `buf`, which has room for `size` bytes. Every
 * record that the elements lie in is compared with its checksum; the checkpoint remembers records that were compared,
 * so a record that holds more than the elements is read once as a whole. A whole tensor is also compared with the
 * manifest's digest of it. Returns 0, or -1 with nothing useful in `buf`.
 */
int sk_read(const struct sk_checkpoint *c, int64_t i, int64_t first, int64_t n, void *buf, size_t size,
            struct sk_error *e);

/* Where all bytes of a tensor lie, one after the other. */
struct sk_place {
    const char *path;                   /* a file on disk; a tar archive for its members */
    uint64_t at;                        /* offset of the first byte */
};
/*
 * Find out whether the bytes of tensor i lie whole and in order in one file, so that the caller can map them. Returns 1
 * with *place filled, or 0 if they have to be read by sk_read(). A tensor with copies, of parts to be added, or without
 * elements has no place. Bytes that are mapped are not compared with checksums.
 */
int sk_locate(const struct sk_checkpoint *c, int64_t i, struct sk_place *place);
/*
 * Return a descriptor of the file that sk_locate() names, for mapping it; place->at is an offset in it. The file is
 * the one that was opened, whatever its name refers to now. The caller closes the descriptor. Returns -1 with
 * SK_ERROR_DATA if the file was changed since sk_open(), or if the tensor has no place.
 */
int sk_place_descriptor(const struct sk_checkpoint *c, int64_t i, struct sk_error *e);

/* ---- verify ---- */

struct sk_verify_options {
    size_t size;                        /* sizeof(struct sk_verify_options) */
    const char *model;                  /* as in sk_open_options */
    const char *certificate;            /* a file that reshape or merge-tp wrote; NULL: none */
    int strict;                         /* 1: warnings make a checkpoint unsound, too */
    int allow_drift;                    /* 1: tensor-parallel copies that differ are warnings */
    int lenient;                        /* 1: accept deviations of the container format that no reader depends on */
    int threads;                        /* 1 to 1024; 0: one per processor */
    uint64_t memory;                    /* bytes of buffers; 0: the default */
    const volatile int *stop;           /* when it becomes other than 0, the call ends with SK_ERROR_STOPPED; or NULL */
};

struct sk_verification {
    int sound;                          /* 1: every byte was read and nothing is wrong */
    int errors, warnings;               /* numbers of findings */
    int n;
    const struct sk_finding *finding;   /* [n], notes included */
    const char *layout;                 /* NULL if nothing could be opened */
    int files;                          /* files that were read, and their bytes */
    uint64_t bytes;
};

/*
 * Check that a checkpoint is complete, undamaged and plausible; every byte is read. The verdict and the findings are
 * those of `ckpt-inspect verify`. Damage is a finding and no failure: returns NULL only if the path cannot be read at
 * all, for an invalid argument, or when it was stopped.
 */
struct sk_verification *sk_verify(const char *path, const struct sk_verify_options *o, struct sk_error *e);
void sk_verification_free(struct sk_verification *v);   /* NULL is allowed */

#ifdef __cplusplus
}
#endif

#endif
