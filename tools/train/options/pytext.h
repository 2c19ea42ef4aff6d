/*
 * pytext.h - format numbers as Python does, for lines that log watchers already parse
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_PYTEXT_H
#define SHARDKIT_TRAIN_OPTIONS_PYTEXT_H

enum { PYTEXT_FLOAT = 48 };             /* size that is sufficient for any double, NUL included */

/*
 * Write x as Python's repr(x) does, with the shortest digits that read back as x: 0.0002, 6e-05, 1.0,
 * 1190.0357275923093, nan. Returns out.
 */
char *pytext_float(char out[PYTEXT_FLOAT], double x);

#endif
