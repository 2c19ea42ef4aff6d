/*
 * processors.h - how many processors a process may use
 */
#ifndef SHARDKIT_BASE_PROCESSORS_H
#define SHARDKIT_BASE_PROCESSORS_H

/*
 * Returns the number of processors in this process's affinity mask, but not more than the CPU quota of its control
 * groups. The result is at least 1.
 */
int processors_allowed(void);

/*
 * Returns the default number of threads of a process if `n_processes` processes, including this one, share the
 * processors. The default is an equal share of the allowed processors. If a launcher has bound this process to some of
 * the processors, the default is the number of these processors. The result is at most OMP_NUM_THREADS, and at least 1.
 */
int processors_default_threads(int n_processes);

/*
 * Returns the smallest CPU quota of the process's control group and the groups above it, up to the root. The result is
 * in whole processors, rounded down but at least 1; INT_MAX if there is no quota. `list` is the path of the process's
 * list of groups ("/proc/self/cgroup"). `mount` is the directory where the hierarchies are mounted ("/sys/fs/cgroup").
 * Version 2 is expected there or in its subfolder "unified", version 1 in its subfolder "cpu". If a group has no
 * directory below `mount`, as in a container, the root group is used.
 */
int processors_quota(const char *list, const char *mount);

#endif
