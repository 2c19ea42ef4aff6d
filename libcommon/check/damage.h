/*
 * damage.h - find the bytes of tensors that cannot be read
 *
 * The map is over the tensor maps of a source, so it is the same for every layout. A record of a file is sound, or
 * none of its bytes count:
 *   lost      its file is missing, or nothing in it can be found (a hole: source_opts.holes)
 *   cut       its file ends before it does
 *   unread    the disk reports an error
 *   corrupt   its bytes do not have its CRC
 * A tensor with pieces in bad records is not damaged if it has the digest that a manifest or a certificate lists. A
 * record without a CRC (safetensors) cannot be checked without such a digest.
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
    int param;                  /* in the source */
    enum state state;
    bool last_stage;            /* the last stage's own copy */
    bool proved;                /* its digest is right all the same */
    int record;                 /* the first bad one */
};

struct damage {
    const struct source *s;
    int n_records, n_bad;
    enum damage_why *why;       /* of each record of the source's files */
    int n_unchecked;            /* records of tensors that have no CRC */
    int n;
    struct damage_state *state; /* by parameter, then state */
    int n_values;
    int *value;                 /* no parameters: tensors with pieces in bad records, lost values (source_value) */
};

struct damage_opts {
    int threads;                /* >= 1 */
    bool (*stopped)(void);      /* may be NULL */
};

/* Read every record that a tensor uses. 0 and *out (end it with damage_free()); -1: ERR_STOP. */
MUST_CHECK int damage_find(struct source *s, const struct damage_opts *o, struct damage *out, struct err *e);
void damage_free(struct damage *d);

/* Elements of the map in bad records; of replicas those of every copy. */
uint64_t damage_elems(const struct damage *d, const struct tmap *m);

/* Some elements of a map, of one slice of REPLICAS or (slice -1) of all. */
struct damage_range {
    int slice;
    uint64_t from, n;           /* elements */
};
/*
 * Read the range into buf and set lost[i] for elements whose bytes cannot be read; theirs in buf stay as they were.
 * -1: ERR_SYS.
 */
MUST_CHECK int damage_read(const struct damage *d, const struct tmap *m, const struct damage_range *r, void *buf,
                           bool *lost, struct err *e);

/* Is this finding an ERROR of a file that is missing, cut or damaged? Then damage lists what is left. */
bool damage_is_loss(const struct finding *f);

/* "is lost", "record data/0 is corrupt": of a bad record, for people. Caller frees. */
char *damage_text(const struct damage *d, int record);

#endif
