/*
 * run-watch - check whether a run is in order (one line per finding, alarms, an exit status), and draw its history
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/parse.h"
#include "tools/run-watch/runwatch.h"

static const struct verb {
    struct cli_command is;
    int (*inspect)(struct runwatch *w, struct err *e);     /* checks something, once per round; NULL: the verb draws */
    int (*draw)(struct runwatch *w, struct err *e);
} verbs[] = {
    { { "status", VERB_STATUS, 1, 1, "status needs one DIR" }, status_inspect, NULL },
    { { "pulse", VERB_PULSE, 0, 0, "pulse needs --job-name NAME" }, pulse_inspect, NULL },
    { { "fs", VERB_FS, 1, 1, "fs needs a file of RULES" }, fs_inspect, NULL },
    { { "crons", VERB_CRONS, 0, 1 << 20, "crons accepts only names" }, crons_inspect, NULL },
    { { "beat", VERB_BEAT, 0, 0, "beat needs --name NAME" }, beat_record, NULL },
    { { "plot", VERB_PLOT, 1, 1 << 20, "plot needs a LOG" }, NULL, plot_draw },
    { { "report", VERB_REPORT, 1, 1 << 20, "report needs a DIR" }, NULL, report_draw },
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static const struct verb *find_verb(struct runwatch *w, const char *word)
{
    const char *names[N_VERBS], *near;

    for (int i = 0; i < N_VERBS; i++) {
        if (word && strcmp(word, verbs[i].is.name) == 0)
            return &verbs[i];
        names[i] = verbs[i].is.name;
    }
    near = word ? parse_nearest(word, names, N_VERBS) : NULL;
    if (!word)
        cli_usage(&w->cli, "no verb given");
    else if (near)
        cli_usage(&w->cli, "no verb '%s'; did you mean '%s'?", word, near);
    else
        cli_usage(&w->cli, "no verb '%s'", word);
    return NULL;
}

/* Wait until the next round is due, or a signal arrives. */
static void sleep_until_round(double seconds)
{
    const double until = clock_s() + seconds;

    while (!cli_stopped() && clock_s() < until) {
        double left = until - clock_s();
        struct timespec t = { .tv_nsec = left > 0.2 ? 200000000 : 1000000 };

        nanosleep(&t, NULL);
    }
}

static int run_draw_verb(struct runwatch *w, const struct verb *verb)
{
    struct err e = {0};
    int rc = verb->draw(w, &e);

    if (rc < 0)
        rc = e.kind == ERR_USAGE ? cli_usage(&w->cli, "%s", e.msg) : cli_fail(&w->cli, &e);
    return cli_done(&w->cli, rc);
}

static int run_watch_verb(struct runwatch *w)
{
    const struct verb *verb = find_verb(w, w->words.n ? w->words.word[0] : NULL);
    int rc;

    if (!verb || cli_words_check(&w->cli, &w->words, 1, &verb->is))
        return EXIT_USAGE;
    if (w->follow_s > 0 && w->given_now)
        return cli_usage(&w->cli, "--follow goes with the clock, not with --now");
    w->verb = verb->is.name;
    w->arg = w->words.word + 1;
    w->n_args = w->words.n - 1;
    if (verb->draw)
        return run_draw_verb(w, verb);
    do {
        rc = round_run(w, verb->inspect);
        if (w->follow_s > 0 && rc != EXIT_USAGE)
            sleep_until_round(w->follow_s);
    } while (w->follow_s > 0 && rc != EXIT_USAGE && !cli_stopped());
    return cli_done(&w->cli, rc);
}

int main(int argc, char **argv)
{
    struct runwatch w = {0};
    int rc;

    cli_start(&w.cli, argv, "run-watch");
    rc = runwatch_parse(&w, argc, argv) < 0 ? EXIT_USAGE : run_watch_verb(&w);
    free(w.words.word);
    return rc;
}
