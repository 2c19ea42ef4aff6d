/*
 * processors.h - how many processors a process may use
 */
#ifndef SHARDKIT_BASE_PROCESSORS_H
#define SHARDKIT_BASE_PROCESSORS_H

/*
 * Returns the number of processors in this process's affinity mask, limited by the CPU quota of its control groups.
 * At least 1.
 */
int processors_allowed(void);

/*
 * Returns the default number of threads of a process that shares its processors with `n_processes` - 1 others (1:
 * with none). This is an equal share of the allowed processors. If a launcher bound the process to some processors,
 * it is all of those. The result is never more than OMP_NUM_THREADS, and at least 1.
 */
int processors_default_threads(int n_processes);

/*
 * Returns the smallest CPU quota of the process's control group and the groups above it, up to the root. The result
 * is in whole processors, rounded down but at least 1; INT_MAX if there is no quota. `list` is the process's list
 * of groups ("/proc/self/cgroup"). `mount` is the directory where the hierarchies are mounted ("/sys/fs/cgroup"):
 * version 2 there or in "unified", version 1 in "cpu". A group that is not visible below `mount`, as in a
 * container, counts as the root.
 */
int processors_quota(const char *list, const char *mount);

#endif
