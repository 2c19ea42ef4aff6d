/*
 * processors.c - affinity mask, CPU quota of control groups, and OMP_NUM_THREADS
 *
 * In a container the mask often contains all processors of the host, while the quota allows only a few. With one
 * thread per visible processor, the threads would wait most of the time for the next period of the quota.
 */
#include "libcommon/base/processors.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/base/text.h"

/* Read the first line of a small file, without the newline. Returns false if it cannot be read. */
static bool read_first_line(const char *path, char *line, int room)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, room, f);

    if (f)
        fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

static int whole_processors(double quota, double period)
{
    if (!(quota > 0 && period > 0) || quota / period >= INT_MAX)
        return INT_MAX;
    return quota < 2 * period ? 1 : (int)(quota / period);
}

/*
 * Returns the CPU quota that the control group with the directory `dir` sets. Version 2 stores the quota in the file
 * cpu.max as "max 100000" or "150000 100000". Version 1 uses two files.
 */
static int folder_quota(const char *dir)
{
    char *both = str_fmt("%s/cpu.max", dir), *quota = str_fmt("%s/cpu.cfs_quota_us", dir),
         *period = str_fmt("%s/cpu.cfs_period_us", dir);
    char line[128], second[128];
    double q, p;
    int n = INT_MAX;

    if (read_first_line(both, line, sizeof line)) {
        if (sscanf(line, "%lf %lf", &q, &p) == 2)
            n = whole_processors(q, p);
    } else if (read_first_line(quota, line, sizeof line) && read_first_line(period, second, sizeof second)) {
        n = whole_processors(atof(line), atof(second));
    }
    free(period);
    free(quota);
    free(both);
    return n;
}

/*
 * Returns the smallest CPU quota of the control group `group` and of all groups above it. The directory of `group` is
 * below `root`.
 */
static int path_quota(const char *root, const char *group)
{
    char *dir = str_fmt("%s%s", root, strcmp(group, "/") ? group : "");
    int n = INT_MAX;

    for (;;) {
        char *slash = strrchr(dir + strlen(root), '/');
        int here = folder_quota(dir);

        n = here < n ? here : n;
        if (!slash)
            break;
        *slash = '\0';
    }
    free(dir);
    return n;
}

/* Returns true if `word` is one of the comma-separated words in [list, end). */
static bool has_word(const char *list, const char *end, const char *word)
{
    for (const char *at = list; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t len = (size_t)((comma ? comma : end) - at);

        if (len == strlen(word) && memcmp(at, word, len) == 0)
            return true;
        at += len + 1;
    }
    return false;
}

int processors_quota(const char *list, const char *mount)
{
    FILE *f = fopen(list, "re");
    char line[PATH_MAX];
    int n = INT_MAX;

    /*
     * A line "0::/path" belongs to version 2. A line "4:cpu,cpuacct:/path" belongs to version 1, and lists the
     * controllers of one hierarchy.
     */
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        line[strcspn(line, "\n")] = '\0';
        if (group == controllers + 1) {
            char *unified = str_fmt("%s/unified", mount);
            int a = path_quota(mount, group + 1), b = path_quota(unified, group + 1);

            n = a < n ? a : n;
            n = b < n ? b : n;
            free(unified);
        } else if (has_word(controllers + 1, group, "cpu")) {
            char *cpu = str_fmt("%s/cpu", mount);
            int a = path_quota(cpu, group + 1);

            n = a < n ? a : n;
            free(cpu);
        }
    }
    if (f)
        fclose(f);
    return n;
}

static int processors_in_mask(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int processors_allowed(void)
{
    int mask = processors_in_mask(), quota = processors_quota("/proc/self/cgroup", "/sys/fs/cgroup");

    return mask < quota ? mask : quota;
}

int processors_default_threads(int n_processes)
{
    const char *omp = getenv("OMP_NUM_THREADS");
    int mask = processors_in_mask(), allowed = processors_allowed(), share = allowed / n_processes;
    int64_t wanted;

    /*
     * If the mask has fewer processors than the machine, this process has them for itself. In contrast, all processes
     * of a group share a quota.
     */
    if (mask < sysconf(_SC_NPROCESSORS_ONLN) && allowed == mask)
        share = mask;
    /* OMP_NUM_THREADS may also list the numbers for nested regions ("4,2"). Only the first number is used here. */
    if (omp && *omp) {
        char *first = str_fmt("%.*s", (int)strcspn(omp, ","), omp);

        if (parse_int(first, 1, INT_MAX, &wanted) == 0 && wanted < share)
            share = (int)wanted;
        free(first);
    }
    return share > 0 ? share : 1;
}
