/*
 * stacks.h - write the stack of each thread of this process as text
 *
 * A signal is sent to one thread after the other. Its handler writes the stack of the thread: the names of functions
 * that the program exports, and for other functions the file and an offset for addr2line. The signals interrupt system
 * calls, so use this only in a process that is about to end.
 */
#ifndef SHARDKIT_TRAIN_GUARD_STACKS_H
#define SHARDKIT_TRAIN_GUARD_STACKS_H

/*
 * Must be called once when the program starts. It loads the code that walks the stack, so that stacks_write() allocates
 * no memory.
 */
void stacks_prepare(void);
/*
 * Write the stacks of all threads to `fd`, beginning with the caller's. Takes at most 2 s in all, and at most 0.1 s for
 * a thread that does not respond. Async-signal-safe. If another call is in progress, nothing is written.
 */
void stacks_write(int fd);

#endif
