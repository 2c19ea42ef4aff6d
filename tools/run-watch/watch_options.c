/*
 * watch_options.c - the options of run-watch, and the verbs that accept them
 */
#include "tools/run-watch/runwatch.h"

#define FIELD(f) OPTION_FIELD(struct runwatch, f)

static const struct option_row status_rows[] = {
    { "log", 0, "FILE", "log file of the run, of train or of Megatron-DeepSpeed", FIELD(log),
      .marks = VERB_STATUS | VERB_REPORT },
    { "events", 0, "DIR", "folder of the TensorBoard files (default: DIR/tensorboard if it exists)",
      FIELD(events), .marks = VERB_STATUS | VERB_REPORT },
    { "hang-minutes", 0, "N", "report a hang after N minutes without an iteration", OPTION_REAL,
      FIELD(hang_min), .def = "10", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "hang-iterations", 0, "N", "report a hang only after N times the median iteration", OPTION_REAL,
      FIELD(hang_iterations), .def = "5", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "slow", 0, "PERCENT", "report a run whose speed is PERCENT below the median of the last hour", OPTION_REAL,
      FIELD(slow_percent), .def = "3", .min = 0, .max = 100, .marks = VERB_STATUS },
    { "spike", 0, "PERCENT", "report a loss that is PERCENT above the median of the last hour",
      OPTION_REAL, FIELD(spike_percent), .def = "5", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "max-save-age", 0, "MINUTES", "report a run whose last complete checkpoint is older; 0: never",
      OPTION_REAL, FIELD(max_save_min), .def = "0", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "rules", 0, "FILE", "rules of ckpt-backup: report backups of DIR that are overdue", FIELD(rules),
      .marks = VERB_STATUS },
    { "max-backup-age", 0, "MINUTES", "report a backup as overdue if its step was saved more than this long "
                                      "ago", OPTION_REAL,
      FIELD(max_backup_min), .def = "1440", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    {0},
};
static const struct option_row pulse_rows[] = {
    { "job-name", 0, "NAME", "name of the Slurm job", FIELD(job_name), .marks = VERB_PULSE },
    { "users", 0, "LIST", "owners of the job, separated by commas (default: the current "
                          "user)", FIELD(users), .marks = VERB_PULSE },
    { "group", 0, "NAME", "owners of the job: the members of a group (getent)", FIELD(group), .marks = VERB_PULSE },
    { "compat", 0, "WHOSE", "print like another project's scripts: bigscience (pulse, fs)", OPTION_WORD, FIELD(compat),
      .words = "bigscience", .min = RUNWATCH_BIGSCIENCE, .marks = VERB_PULSE | VERB_FS },
    {0},
};
static const struct option_row fs_rows[] = {
    { "ahead", 0, "HOURS", "report a disk that will be full within HOURS at the rate of the last "
                           "day", OPTION_REAL, FIELD(ahead_h),
      .def = "48", .min = 0, .max = 1e6, .marks = VERB_FS },
    {0},
};
static const struct option_row crons_rows[] = {
    { "max-age", 0, "MINUTES", "report a heartbeat that is older, if it was recorded without "
                               "--every", OPTION_REAL, FIELD(max_age_min),
      .def = "90", .min = 0.01, .max = 1e9, .marks = VERB_CRONS },
    {0},
};
static const struct option_row draw_rows[] = {
    { "output", 'o', "FILE", "write to FILE instead of stdout; plot writes SVG", FIELD(output), .marks = VERB_DRAWS },
    { "backups", 0, "PLACE", "place where ckpt-backup keeps backups of the run (report)", FIELD(backups),
      .marks = VERB_REPORT },
    { "title", 0, "TEXT", "title of the picture or page", FIELD(title), .marks = VERB_DRAWS },
    { "level", 0, "NAME=VALUE", "draw a horizontal line at a loss (plot)", FIELD(level), .marks = VERB_PLOT },
    { "difference", 0, NULL, "plot the difference of each run from the first one, at equal numbers of samples "
                             "(plot)", FIELD(difference),
      .marks = VERB_PLOT },
    {0},
};
static const struct option_row alarm_rows[] = {
    { "mail", 0, "ADDRESS", "send reports by mail, with sendmail", FIELD(mail), .marks = VERB_CHECKS },
    { "webhook", 0, "URL", "send reports as a POST of {\"text\": ...}, with curl; @FILE reads the URL from a "
                           "file", FIELD(webhook),
      .marks = VERB_CHECKS },
    { "command", 0, "TEXT", "run TEXT with sh for each report, which it receives on stdin", FIELD(command),
      .marks = VERB_CHECKS },
    { "remind", 0, "MINUTES", "repeat the report of a problem that persists after this long; 0: never", OPTION_REAL,
      FIELD(remind_min), .def = "360", .min = 0, .max = 1e9, .marks = VERB_CHECKS },
    { "follow", 0, "SECONDS", "repeat the check every SECONDS until it is stopped", OPTION_REAL, FIELD(follow_s),
      .min = 1, .max = 1e6, .marks = VERB_CHECKS },
    { "name", 0, "NAME", "record a heartbeat under this name", FIELD(name), .marks = VERB_CHECKS | VERB_BEAT },
    { "every", 0, "MINUTES", "interval at which this command is started; crons reports a heartbeat that is "
                             "late", OPTION_REAL, FIELD(every_min),
      .min = 0.01, .max = 1e6, .marks = VERB_CHECKS | VERB_BEAT },
    { "state", 0, "FILE", "file that stores the state between runs (default "
                          "~/.local/state/run-watch.json)", FIELD(book) },
    { "now", 0, "SECONDS", "use this time as the current one, in seconds since 1970 "
                           "(UTC)", OPTION_INT, FIELD(given_now), .min = 1,
      .max = 1e11, .marks = VERB_CHECKS | VERB_BEAT | VERB_REPORT },
    {0},
};

static const char head[] =
    "Usage: run-watch VERB [options] ...\n"
    "Check a training run, its job and its disks. Prints one line for each problem, and for each\n"
    "check that could not be made. Reads the files of train and the logs of Megatron-DeepSpeed.\n"
    "\n"
    "Verbs:\n"
    "  status DIR                check the run that saves its checkpoints in DIR: hangs, speed,\n"
    "                            loss spikes, age of checkpoints and backups\n"
    "  pulse --job-name NAME     check a Slurm job: running, waiting or gone\n"
    "  fs RULES                  check quotas, folders and file systems for free space\n"
    "  crons [NAME...]           check that other watchers recorded heartbeats in time\n"
    "  beat --name NAME          record a heartbeat for another program\n"
    "  plot [NAME=]LOG...        draw the losses of runs on the terminal, or as SVG (--output)\n"
    "  report [NAME=]DIR...      write an HTML page with curves, incidents, checkpoints,\n"
    "                            stragglers and disks\n";
static const char tail[] =
    "Exit status: 0 no problem, 1 a problem was found or a check could not be made, 2 wrong usage.\n"
    "Examples:\n"
    "  run-watch status --log main_log.txt --max-save-age 90 --mail oncall@example.org ckpt\n"
    "  run-watch plot --output loss.svg main_log.txt\n"
    "  run-watch report --output run.html ckpt\n";

static const struct option_command verbs[] = {
    { "status", VERB_STATUS, false, NULL, NULL },
    { "pulse", VERB_PULSE, false, NULL, NULL },
    { "fs", VERB_FS, false, NULL, NULL },
    { "crons", VERB_CRONS, false, NULL, NULL },
    { "beat", VERB_BEAT, false, NULL, NULL },
    { "plot", VERB_PLOT, false, NULL, NULL },
    { "report", VERB_REPORT, false, NULL, NULL },
    {0},
};

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

int runwatch_parse(struct runwatch *w, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options of status", status_rows, NULL, 0 }, { "Options of pulse", pulse_rows, NULL, 0 },
        { "Options of fs", fs_rows, NULL, 0 }, { "Options of crons", crons_rows, NULL, 0 },
        { "Pictures", draw_rows, NULL, 0 },
        { "Alarms", alarm_rows, NULL, 0 },
        { "Program", cli_rows, &w->cli, 0 }, {0},
    };
    const struct option_table table = {
        "run-watch", head, tail, groups, w, verbs,
        operands, &w->words, .given = cli_words_given,
    };

    option_set_defaults(&table);
    return cli_parse(&w->cli, &table, argc, argv);
}
