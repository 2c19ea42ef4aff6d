/*
 * stacks.h - write the stack of each thread of this process as text
 *
 * A signal is sent to one thread after the other, and its handler writes the stack: function names where the program
 * exports them, else the file and an offset for addr2line. Use it only in a process that is about to end, because
 * system calls are interrupted.
 */
#ifndef SHARDKIT_TRAIN_GUARD_STACKS_H
#define SHARDKIT_TRAIN_GUARD_STACKS_H

/* Call it once at the start. It loads the code for unwinding, so that no memory is allocated later. */
void stacks_prepare(void);
/*
 * Write the stacks of all threads to `fd`, the caller's first. Takes at most 2 s, and 0.1 s for a thread that does
 * not respond. Async-signal-safe. If a call is already in progress, a second call writes nothing.
 */
void stacks_write(int fd);

#endif
