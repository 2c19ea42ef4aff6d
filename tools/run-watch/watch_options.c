/*
 * watch_options.c - the options of run-watch, and the verbs that accept them
 */
#include "tools/run-watch/runwatch.h"

#define FIELD(f) OPTION_FIELD(struct runwatch, f)

static const struct option_row status_rows[] = {
    { "log", 0, "FILE", "the run's log, of train or Megatron-DeepSpeed", FIELD(log),
      .marks = VERB_STATUS | VERB_REPORT },
    { "events", 0, "DIR", "the folder of its TensorBoard files (default DIR/tensorboard, where it is)",
      FIELD(events), .marks = VERB_STATUS | VERB_REPORT },
    { "hang-minutes", 0, "N", "no iteration for so long is a hang", OPTION_REAL,
      FIELD(hang_min), .def = "10", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "hang-iterations", 0, "N", "but never less than N times the median iteration", OPTION_REAL,
      FIELD(hang_iterations), .def = "5", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "slow", 0, "PERCENT", "below the median of the last hour by so much is slow", OPTION_REAL,
      FIELD(slow_percent), .def = "3", .min = 0, .max = 100, .marks = VERB_STATUS },
    { "spike", 0, "PERCENT", "above the median of the last hour by so much a loss is a spike",
      OPTION_REAL, FIELD(spike_percent), .def = "5", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "max-save-age", 0, "MINUTES", "a last complete save that is older is wrong; 0: any age will do",
      OPTION_REAL, FIELD(max_save_min), .def = "0", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    { "rules", 0, "FILE", "ckpt-backup's rules: is a copy of DIR overdue?", FIELD(rules),
      .marks = VERB_STATUS },
    { "max-backup-age", 0, "MINUTES", "a copy is overdue when its step is older", OPTION_REAL,
      FIELD(max_backup_min), .def = "1440", .min = 0, .max = 1e9, .marks = VERB_STATUS },
    {0},
};
static const struct option_row pulse_rows[] = {
    { "job-name", 0, "NAME", "the job's name", FIELD(job_name), .marks = VERB_PULSE },
    { "users", 0, "LIST", "whose it may be, parted by commas (default: yours)", FIELD(users), .marks = VERB_PULSE },
    { "group", 0, "NAME", "or of which group (getent)", FIELD(group), .marks = VERB_PULSE },
    { "compat", 0, "WHOSE", "print as bigscience's scripts did (pulse, fs)", OPTION_WORD, FIELD(compat),
      .words = "bigscience", .min = RUNWATCH_BIGSCIENCE, .marks = VERB_PULSE | VERB_FS },
    {0},
};
static const struct option_row fs_rows[] = {
    { "ahead", 0, "HOURS", "full sooner than this at the last day's rate is wrong", OPTION_REAL, FIELD(ahead_h),
      .def = "48", .min = 0, .max = 1e6, .marks = VERB_FS },
    {0},
};
static const struct option_row crons_rows[] = {
    { "max-age", 0, "MINUTES", "of a heartbeat that came without --every", OPTION_REAL, FIELD(max_age_min),
      .def = "90", .min = 0.01, .max = 1e9, .marks = VERB_CRONS },
    {0},
};
static const struct option_row draw_rows[] = {
    { "output", 'o', "FILE", "write there instead of stdout; plot: as SVG", FIELD(output), .marks = VERB_DRAWS },
    { "backups", 0, "PLACE", "where ckpt-backup keeps copies of the run (report)", FIELD(backups),
      .marks = VERB_REPORT },
    { "title", 0, "TEXT", "what stands above", FIELD(title), .marks = VERB_DRAWS },
    { "level", 0, "NAME=VALUE", "a horizontal line at that loss (plot)", FIELD(level), .marks = VERB_PLOT },
    { "difference", 0, NULL, "runs over the same samples: how far each is above the first (plot)", FIELD(difference),
      .marks = VERB_PLOT },
    {0},
};
static const struct option_row alarm_rows[] = {
    { "mail", 0, "ADDRESS", "tell by mail, through sendmail", FIELD(mail), .marks = VERB_CHECKS },
    { "webhook", 0, "URL", "tell by a POST of {\"text\": ...}, through curl; @FILE: the URL is in it", FIELD(webhook),
      .marks = VERB_CHECKS },
    { "command", 0, "TEXT", "tell by running it with sh; what is told is its standard input", FIELD(command),
      .marks = VERB_CHECKS },
    { "remind", 0, "MINUTES", "tell again of what lasts so long (0: never)", OPTION_REAL,
      FIELD(remind_min), .def = "360", .min = 0, .max = 1e9, .marks = VERB_CHECKS },
    { "follow", 0, "SECONDS", "look again every so often, until it is stopped", OPTION_REAL, FIELD(follow_s),
      .min = 1, .max = 1e6, .marks = VERB_CHECKS },
    { "name", 0, "NAME", "leave a heartbeat under this name", FIELD(name), .marks = VERB_CHECKS | VERB_BEAT },
    { "every", 0, "MINUTES", "how often this is called; crons knows by it what is late", OPTION_REAL, FIELD(every_min),
      .min = 0.01, .max = 1e6, .marks = VERB_CHECKS | VERB_BEAT },
    { "state", 0, "FILE", "what is remembered (default ~/.local/state/run-watch.json)", FIELD(book) },
    { "now", 0, "SECONDS", "judge as if it were so late (since 1970, UTC)", OPTION_INT, FIELD(given_now), .min = 1,
      .max = 1e11, .marks = VERB_CHECKS | VERB_BEAT | VERB_REPORT },
    {0},
};

static const char head[] =
    "Usage: run-watch VERB [options] ...\n"
    "Is the run well? One line for each thing that is wrong or could not be established.\n"
    "\nVerbs:\n"
    "  status DIR                a run of train by its folder of checkpoints: hung, slow, spiked, unsaved, ...\n"
    "  pulse --job-name NAME     a job of Slurm: running, waiting, or gone\n"
    "  fs RULES                  quotas, folders, file systems: is there room, and for how long?\n"
    "  crons [NAME...]           the other watchers: did each come by on time?\n"
    "  beat --name NAME          leave a heartbeat for a program that is no run-watch\n"
    "  plot [NAME=]LOG...        losses of runs on the terminal, or with --output as SVG\n"
    "  report [NAME=]DIR...      all of it on one page of HTML: curves, incidents, saves, stragglers, disks\n";
static const char tail[] =
    "Exit status: 0 all is well, 1 something is wrong or could not be established, 2 wrong usage.\n"
    "Example: run-watch status --log main_log.txt --max-save-age 90 --mail oncall@example.org ckpt\n";

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

int runwatch_parse(struct runwatch *w, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Of status", status_rows, NULL, 0 }, { "Of pulse", pulse_rows, NULL, 0 }, { "Of fs", fs_rows, NULL, 0 },
        { "Of crons", crons_rows, NULL, 0 }, { "Pictures", draw_rows, NULL, 0 },
        { "Alarms", alarm_rows, NULL, 0 },
        { "Program", cli_rows, &w->cli, 0 }, {0},
    };
    const struct option_table table = {
        "run-watch", head, tail, groups, w, "status pulse fs crons beat plot report",
        operands, &w->words, .given = cli_words_given,
    };

    option_set_defaults(&table);
    return cli_parse(&w->cli, &table, argc, argv);
}
