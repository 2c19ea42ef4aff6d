/*
 * pytext.h - numbers as Python prints them, for lines that log watchers already know
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_PYTEXT_H
#define SHARDKIT_TRAIN_OPTIONS_PYTEXT_H

enum { PYTEXT_FLOAT = 48 };             /* room for any double, NUL included */

/* repr(x): the shortest digits that give x back: 0.0002, 6e-05, 1.0, 1190.0357275923093, nan. Returns out. */
char *pytext_float(char out[PYTEXT_FLOAT], double x);

#endif
