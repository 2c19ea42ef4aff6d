/* pytext.h - format numbers as Python does, for log lines that existing programs parse */
#ifndef SHARDKIT_TRAIN_OPTIONS_PYTEXT_H
#define SHARDKIT_TRAIN_OPTIONS_PYTEXT_H

enum { PYTEXT_FLOAT = 48 };             /* size that is sufficient for any double, including the NUL */

/*
 * Write x like Python's repr(x), with the fewest digits that read back as x: 0.0002, 6e-05, 1.0, 1190.0357275923093,
 * nan. Returns `out`.
 */
char *pytext_float(char out[PYTEXT_FLOAT], double x);

#endif
