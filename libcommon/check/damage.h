/*
 * damage.h - find the bytes of tensors that cannot be read
 *
 * Damage is determined on the tensor maps of a source, so the method is the same for every layout. A record of a file
 * is sound, or all of its bytes count as bad:
 *   lost      its file is missing, or its container cannot be read; source_opts.holes allows to open such a source
 *   cut       its file ends before the record does
 *   unread    the system refuses to open or read its file (permissions, a disk error): what it holds is unknown
 *   corrupt   its bytes do not have the stored CRC
 * A tensor with pieces in corrupt records counts as undamaged (`proved`) if its bytes still have the digest that a
 * manifest or a certificate lists. A record without a CRC (safetensors) cannot be checked without such a digest.
 */
#ifndef SHARDKIT_CHECK_DAMAGE_H
#define SHARDKIT_CHECK_DAMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"

struct finding;
struct tmap;
enum damage_why { DAMAGE_NONE, DAMAGE_LOST, DAMAGE_CUT, DAMAGE_UNREAD, DAMAGE_CORRUPT };

/* One state of one parameter that has pieces in bad records. */
struct damage_state {
    int param;                  /* index of the parameter in the source */
    enum state state;
    bool last_stage;            /* this is the last stage's own copy of a tied parameter */
    bool proved;                /* the tensor's bytes still have the digest that a manifest or a certificate lists */
    int record;                 /* number of the first bad record of this state */
};

struct damage {
    const struct source *s;
    int n_records, n_bad;
    enum damage_why *why;       /* [n_records]: the state of each record of the source's files */
    int *sys;                   /* [n_records]: errno if it is DAMAGE_UNREAD, else 0 */
    int n_unchecked;            /* records of tensors that store no CRC and therefore were not checked */
    int n;
    struct damage_state *state; /* sorted by parameter, then state */
    int n_values;
    int *value;                 /* [n_values]: indices of the source_value entries that are lost, or whose tensor has
                                 * pieces in bad records */
};

struct damage_opts {
    int threads;                /* >= 1 */
    bool (*stopped)(void);      /* returns true to stop; may be NULL */
};

/*
 * Read every record that a tensor uses, and list the damage in *out. The caller must release *out with damage_free().
 * Returns -1 with ERR_STOP if `stopped` returned true.
 */
MUST_CHECK int damage_find(struct source *s, const struct damage_opts *o, struct damage *out, struct err *e);
void damage_free(struct damage *d);
/*
 * Check that no record is DAMAGE_UNREAD, because such a record may be intact and must not be replaced. Returns -1 with
 * ERR_SYS if there is one; *e then names the file and the cause.
 */
MUST_CHECK int damage_check_read(const struct damage *d, struct err *e);

/* Returns the number of elements of the map that lie in bad records. For replicas this is the sum over all copies. */
uint64_t damage_elems(const struct damage *d, const struct tmap *m);

/* A range of elements of a map. If the map is REPLICAS, `slice` selects one copy; -1 selects the whole map. */
struct damage_range {
    int slice;
    uint64_t from, n;           /* elements */
};
/*
 * Read the elements in range r into buf. For each element whose bytes are in bad records, sets lost[i] and leaves buf
 * unchanged. Returns -1 with ERR_SYS if other bytes cannot be read.
 */
MUST_CHECK int damage_read(const struct damage *d, const struct tmap *m, const struct damage_range *r, void *buf,
                           bool *lost, struct err *e);

/*
 * Returns true if the finding is an ERROR about a missing, truncated or damaged file. damage_find() can describe such
 * damage in detail.
 */
bool damage_is_loss(const struct finding *f);

/* Returns a description of a record for people: "is lost ...", "record data/0 is corrupt ...". The caller frees it. */
char *damage_text(const struct damage *d, int record);

#endif
