/*
 * processors.h - how many processors a process may use
 */
#ifndef SHARDKIT_BASE_PROCESSORS_H
#define SHARDKIT_BASE_PROCESSORS_H

/*
 * Processors in the affinity mask of this process, but no more than the CPU quota of its control groups allows.
 * At least 1.
 */
int processors_allowed(void);

/*
 * Default number of threads of a process that shares its processors with `n_processes` - 1 others (1: with none): its
 * share of the allowed processors, all of its own where a launcher bound it to some, and never more than
 * OMP_NUM_THREADS. At least 1.
 */
int processors_default_threads(int n_processes);

/*
 * The smallest CPU quota on the way from the process's control group up to the root, as whole processors, rounded
 * down but at least 1; INT_MAX if there is none. `list` is the process's list of groups ("/proc/self/cgroup"), `mount`
 * the folder where the hierarchies are mounted ("/sys/fs/cgroup"): version 2 there or in "unified", version 1 in "cpu".
 * A group that is not visible below `mount`, as in a container, counts as the root.
 */
int processors_quota(const char *list, const char *mount);

#endif
