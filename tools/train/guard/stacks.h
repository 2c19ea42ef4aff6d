/*
 * stacks.h - where each thread of this process is, as text
 *
 * A signal asks one thread after the other, and its handler writes the stack: function names where the program offers
 * them, else the file and an offset that addr2line takes. For a process that is about to end: system calls are
 * interrupted.
 */
#ifndef SHARDKIT_TRAIN_GUARD_STACKS_H
#define SHARDKIT_TRAIN_GUARD_STACKS_H

/* Once: what unwinding needs is loaded now, so that it takes no memory later. */
void stacks_prepare(void);
/*
 * The stacks of all threads, the caller's first, to `fd`. At most 2 s, 0.1 s for a thread that does not answer.
 * Async-signal-safe. One at a time: a second caller gets nothing.
 */
void stacks_write(int fd);

#endif
