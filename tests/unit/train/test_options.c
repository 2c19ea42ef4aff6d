/* test_options.c - options: every source, every refusal, real scripts */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "tools/train/options/train_options.h"
#include "tools/train/options/schedule.h"

static char dir[256];
static struct train_opts o;

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/options-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

static int forget(void **state)
{
    (void)state;
    options_free(&o);
    return 0;
}

static char *put(const char *name, const char *text)
{
    char *path = path_join(dir, name);
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* Words at blanks; ~ in a word stands for a blank. */
static int words_of(const char *line, char *text, char **argv)
{
    int n = 1;

    strcpy(text, line);
    argv[0] = (char *)"train";
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) {
        for (char *p = w; *p; p++)
            if (*p == '~')
                *p = ' ';
        argv[n++] = w;
    }
    argv[n] = NULL;
    return n;
}

/* 0, or -1 with the message in `msg`. world 0: only parse. */
static int attempt(const char *line, char **env, int world, char msg[1024])
{
    char *text = malloc(strlen(line) + 1), *argv[512];
    struct err e = {0};
    int argc = words_of(line, text, argv), rc;

    options_free(&o);
    rc = options_parse(&o, argc, argv, env, &e);
    if (rc == 0 && world)
        rc = options_check(&o, world, OPTIONS_BEFORE_LOAD, &e);
    free(text);                         /* nothing may point there */
    snprintf(msg, 1024, "%s", e.msg);
    return rc;
}

static void accept(const char *line, char **env, int world)
{
    char msg[1024];

    if (attempt(line, env, world, msg) < 0)
        fail_msg("%s\n  %s", line, msg);
}

static void refuse(const char *line, char **env, int world, const char *want)
{
    char msg[1024];

    if (attempt(line, env, world, msg) == 0)
        fail_msg("accepted: %s", line);
    if (strcmp(msg, want) != 0)
        fail_msg("%s\n  said:   %s\n  wanted: %s", line, msg, want);
}

#define MODEL "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
#define RUN "--micro-batch-size 1 --train-samples 1200 --lr 2e-3 --vocab-size 257 --data-path /d/text "

/* ---- the command line ---- */

static void test_defaults(void **state)
{
    (void)state;
    accept("", NULL, 0);
    assert_true(o.attention_dropout == 0.1 && o.adam_beta2 == 0.999 && o.adam_eps == 1e-8 && o.clip_grad == 1);
    assert_int_equal(o.seed, 1234);
    assert_int_equal(o.adam_initial_step, 1);
    assert_int_equal(o.eval_interval, 1000);
    assert_int_equal(o.lr_decay_style, DECAY_LINEAR);
    assert_int_equal(o.eod_id, -1);
    assert_int_equal(o.umask, -1);
    assert_int_equal(o.replicas, REPLICAS_FAIL);
    assert_true(o.log_learning_rate_to_tensorboard && !o.bf16 && !o.save && o.epoch_cutoff == 0.95);
    assert_false(OPTS_GIVEN(&o, seed));
    assert_int_equal(o.n_remarks, 0);
}

static void test_spellings(void **state)
{
    (void)state;
    accept("--num_layers 70 --ffn_hidden_size=57_344 --DDP-impl local --DDP_impl torch --lr=6e-5 --min-lr 6E-06 "
           "--rampup-batch-size 192 16 9_765_625 --train-samples 220_000_000 --clip-grad 2 --clip-grad 1.0 -j4 -q "
           "--eval-only False --skip-train-iteration-range 101-200 5-7 --umask 002", NULL, 0);
    assert_int_equal(o.num_layers, 70);
    assert_int_equal(o.ffn_hidden_size, 57344);
    assert_int_equal(o.train_samples, 220000000);
    assert_int_equal(o.rampup_batch_size.n, 3);
    assert_string_equal(o.rampup_batch_size.v[2], "9_765_625");
    assert_true(o.lr == 6e-5 && o.min_lr == 6e-6 && o.clip_grad == 1 && !o.eval_only && o.quiet);
    assert_int_equal(o.threads, 4);
    assert_int_equal(o.skip_train_iteration_range.n, 2);
    assert_int_equal(o.umask, 2);
    assert_true(OPTS_GIVEN(&o, lr) && OPTS_GIVEN(&o, eval_only) && !OPTS_GIVEN(&o, seed));
    assert_string_equal(OPTS_WHERE(&o, lr), "--lr");
    assert_int_equal(o.n_remarks, 1);
    assert_string_equal(o.remark[0], "accepted, without effect here: --DDP-impl");
    accept("--eval-only --data-path 0.3 /a 0.7 /b --eval-iters 0", NULL, 0);
    assert_true(o.eval_only);
    assert_int_equal(o.data_path.n, 4);
    assert_string_equal(o.data_path.v[3], "/b");
    /* A shell variable with quotes in it. */
    accept("--pp-partition-method 'type:transformer|embedding'", NULL, 0);
    assert_string_equal(o.pp_partition_method, "type:transformer|embedding");
    accept("--encoder-seq-length 77 --no-log-learnig-rate-to-tensorboard", NULL, 0);
    assert_int_equal(o.seq_length, 77);
    assert_false(o.log_learning_rate_to_tensorboard);
    accept("--optimizer adam --dataloader-type single --remote-device none --sample-rate 1", NULL, 0);
    assert_int_equal(o.n_remarks, 0);
}

/* A short form of only one option is accepted, as by argparse, and reported. */
static void test_short_names(void **state)
{
    char *path = put("short.conf", "seed = 7\n"), line[600];

    (void)state;
    accept("--train-iter 40 --micro_batch=3 --tensor-mo 2 --data-p /a --DDP local", NULL, 0);
    assert_true(o.train_iters == 40 && o.micro_batch_size == 3 && o.tensor_model_parallel_size == 2);
    assert_string_equal(o.data_path.v[0], "/a");
    assert_int_equal(o.n_remarks, 6);
    assert_string_equal(o.remark[0], "--train-iter is taken for --train-iters");
    assert_string_equal(o.remark[1], "--micro_batch is taken for --micro-batch-size");
    assert_string_equal(o.remark[5], "accepted, without effect here: --DDP-impl");
    /* One name that begins another is itself. */
    accept("--lr 1e-3 --save x --deepspeed", NULL, 0);
    assert_int_equal(o.n_remarks, 0);
    accept("--encoder 77", NULL, 0);            /* an alias */
    assert_int_equal(o.seq_length, 77);
    snprintf(line, sizeof line, "--conf %s", path);
    accept(line, NULL, 0);
    assert_int_equal(o.seed, 7);
    snprintf(line, sizeof line, "--conf=%s --seed 8", path);
    accept(line, NULL, 0);
    assert_int_equal(o.seed, 8);
    accept("--vers", NULL, 0);
    assert_int_equal(o.asked, OPTION_ASKED_VERSION);
    refuse("--num-layer 4", NULL, 0, "option '--num-layer' is the beginning of several: --num-layers, "
           "--num-layers-per-virtual-pipeline-stage");
    refuse("--train 4", NULL, 0, "option '--train' is the beginning of several: --train-samples, --train-iters, "
           "--train-tokens, --train-weighted-split-paths, --train-weighted-split-paths-path");
    refuse("--glu geglu", NULL, 0, "--glu-activation: gated activations are not supported");
    refuse("--spars", NULL, 0, "--spars: sparse attention is not supported");
    refuse("--train-iter x", NULL, 0, "--train-iters: 'x' is not a whole number");
    refuse("-- 4", NULL, 0, "'4' is not the value of an option");
    free(path);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("--num-leyers 4", NULL, 0, "unknown option '--num-leyers'; did you mean '--num-layers'?");
    refuse("--frobnicate-all", NULL, 0, "unknown option '--frobnicate-all'");
    refuse("-x", NULL, 0, "unknown option '-x'");
    refuse("pretrain_gpt.py", NULL, 0, "'pretrain_gpt.py' is not the value of an option");
    refuse("--save --load x", NULL, 0, "--save needs a value");
    refuse("--lr", NULL, 0, "--lr needs a value");
    refuse("--fp16=1", NULL, 0, "--fp16 accepts no value");
    refuse("--lr 0x10", NULL, 0, "--lr: '0x10' is not a number");
    refuse("--lr nan", NULL, 0, "--lr: 'nan' is not a number");
    refuse("--lr 1e999", NULL, 0, "--lr: '1e999' is not a number");
    refuse("--lr -1", NULL, 0, "--lr: -1 is out of range; the value must be from 0 to 1e+06");
    refuse("--num-layers 4.5", NULL, 0, "--num-layers: '4.5' is not a whole number");
    refuse("--num-layers 99999999999999999999", NULL, 0,
           "--num-layers: '99999999999999999999' is not a whole number");
    refuse("--seed 0", NULL, 0, "--seed: 0 is out of range; the value must be from 1 to 4294967295");
    refuse("--umask 8", NULL, 0, "--umask: '8' is not an octal number up to 777");
    refuse("--position-embedding-type rotary", NULL, 0,
           "--position-embedding-type: 'rotary' is not supported; the value must be absolute or alibi");
    refuse("--replicas best", NULL, 0,
           "--replicas: 'best' is not supported; the value must be average, first, majority or fail");
    refuse("--fp16-lm-cross-entropy", NULL, 0, "--fp16-lm-cross-entropy: the loss is computed in fp32");
    refuse("--optimizer sgd", NULL, 0, "--optimizer: 'sgd' is not supported: only Adam is supported");
    refuse("--glu-activation geglu", NULL, 0, "--glu-activation: gated activations are not supported");
    refuse("--bert-load x", NULL, 0, "--bert-load: BERT models are not supported");
    refuse("--sparse-attention", NULL, 0, "--sparse-attention: sparse attention is not supported");
    refuse("--curriculum_learning", NULL, 0, "--curriculum_learning: curriculum learning is not supported");
    refuse("--num-layers-per-virtual-pipeline-stage 2", NULL, 0,
           "--num-layers-per-virtual-pipeline-stage: the interleaved pipeline schedule is not supported");
    refuse("--batch-size 4", NULL, 0, "--batch-size: use --micro-batch-size");
    refuse("--zero-stage 3", NULL, 0, "--zero-stage: 3 is out of range; the value must be from 0 to 1");
}

static void test_help_wins(void **state)
{
    struct strbuf sb = {0};

    (void)state;
    accept("--nonsense --help", NULL, 0);
    assert_int_equal(o.asked, OPTION_ASKED_HELP);
    accept("--lr x --version", NULL, 0);
    assert_int_equal(o.asked, OPTION_ASKED_VERSION);
    option_table_help(&options_table, "train", NULL, NULL, &sb);
    assert_non_null(strstr(sb.buf, "      --num-layers N          number of transformer blocks\n"));
    assert_non_null(strstr(sb.buf, "  -j, --threads N             threads per rank"));
    assert_non_null(strstr(sb.buf, "(default 0.95)"));
    for (char *line = strtok(sb.buf, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) > 100)
            fail_msg("a long line: %s", line);
    strbuf_free(&sb);
}

/* ---- other sources ---- */

static void test_environment(void **state)
{
    char *env[] = { (char *)"PATH=/bin", (char *)"SHARDKIT_LR=3e-4", (char *)"SHARDKIT_BF16=1",
                    (char *)"SHARDKIT_EMBED_LAYERNORM=false", (char *)"SHARDKIT_SAVE=/a dir/x",
                    (char *)"SHARDKIT_RAMPUP_BATCH_SIZE=4 4  96", (char *)"SHARDKIT_LRR=1", NULL };
    char *bad[] = { (char *)"SHARDKIT_BF16=maybe", NULL }, *two[] = { (char *)"SHARDKIT_LR=", NULL };

    (void)state;
    accept("--seed 5", env, 0);
    assert_true(o.lr == 3e-4 && o.bf16 && !o.embed_layernorm && o.seed == 5);
    assert_string_equal(o.save, "/a dir/x");
    assert_int_equal(o.rampup_batch_size.n, 3);
    assert_true(OPTS_GIVEN(&o, embed_layernorm));
    assert_string_equal(OPTS_WHERE(&o, lr), "--lr (SHARDKIT_LR)");
    assert_int_equal(o.n_remarks, 1);
    assert_string_equal(o.remark[0], "environment: SHARDKIT_LRR is no option");
    accept("--lr 1", env, 0);
    assert_true(o.lr == 1);
    refuse("", bad, 0, "--bf16 (SHARDKIT_BF16): 'maybe' is not true or false");
    refuse("", two, 0, "--lr (SHARDKIT_LR): '' is not a number");
}

static void test_file(void **state)
{
    char *path = put("run.conf", "# a run\n\nnum-layers = 4\nmicro_batch_size=2   # mine\n--seed 7\nbf16\n"
                     "embed-layernorm = no\nsave \"/a # dir/x\"\r\nrampup-batch-size = 4 4 96\n"
                     "valid-weighted-split-paths = \"en: 1 0:1 /d/en\" 'fr: 1 0:1 /d/fr'\nnum-workers 2\nlr = 0.5");
    char *bad, line[600], want[800], config[300], *env[] = { config, (char *)"SHARDKIT_LR=0.25", NULL };

    (void)state;
    snprintf(config, sizeof config, "SHARDKIT_CONFIG=%s", path);
    snprintf(line, sizeof line, "--config %s --seed 8", path);
    accept(line, NULL, 0);
    assert_true(o.num_layers == 4 && o.micro_batch_size == 2 && o.seed == 8 && o.bf16 && o.lr == 0.5);
    assert_string_equal(o.save, "/a # dir/x");
    assert_int_equal(o.rampup_batch_size.n, 3);
    assert_int_equal(o.valid_weighted_split_paths.n, 2);
    assert_string_equal(o.valid_weighted_split_paths.v[1], "fr: 1 0:1 /d/fr");
    snprintf(want, sizeof want, "--micro-batch-size (%s, line 4)", path);
    assert_string_equal(OPTS_WHERE(&o, micro_batch_size), want);
    assert_string_equal(OPTS_WHERE(&o, seed), "--seed");
    accept("", env, 0);                         /* the environment names the file and wins over it */
    assert_true(o.lr == 0.25 && o.seed == 7);

    bad = put("bad.conf", "lr = 1\nmicro-batch-sise = 4\n");
    snprintf(line, sizeof line, "--config=%s", bad);
    snprintf(want, sizeof want, "%s, line 2: unknown option 'micro-batch-sise'; did you mean 'micro-batch-size'?", bad);
    refuse(line, NULL, 0, want);
    free(put("bad.conf", "lr = 1 2\n"));
    snprintf(want, sizeof want, "--lr (%s, line 1): expected one value, found 2", bad);
    refuse(line, NULL, 0, want);
    free(put("bad.conf", "save = 'x\n"));
    snprintf(want, sizeof want, "%s, line 1: save: a quote is not closed", bad);
    refuse(line, NULL, 0, want);
    free(put("bad.conf", "config = x\n"));
    snprintf(want, sizeof want, "%s, line 1: a file of options cannot name another", bad);
    refuse(line, NULL, 0, want);
    free(put("bad.conf", "= 3\n"));
    snprintf(want, sizeof want, "%s, line 1: expected 'name = value'", bad);
    refuse(line, NULL, 0, want);
    unlink(bad);
    snprintf(want, sizeof want, "%s: cannot open: No such file or directory", bad);
    refuse(line, NULL, 0, want);
    free(path);
    free(bad);
}

/* ---- DeepSpeed's JSON ---- */

static void with_json(const char *json, const char *line, int world, const char *want)
{
    char *path = put("ds.json", json), whole[2000], message[1200];

    snprintf(whole, sizeof whole, "%s --deepspeed --deepspeed_config %s", line, path);
    if (want) {
        snprintf(message, sizeof message, want, path, path);
        refuse(whole, NULL, world, message);
    } else {
        accept(whole, NULL, world);
    }
    free(path);
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static void test_deepspeed(void **state)
{
    static const char bloom[] =
        "{\"train_micro_batch_size_per_gpu\": 2, \"train_batch_size\": 2048, \"gradient_clipping\": 1.0,"
        " \"zero_optimization\": {\"stage\": 0}, \"bf16\": {\"enabled\": true}, \"steps_per_print\": 2000,"
        " \"wall_clock_breakdown\": false}";

    (void)state;
    with_json(bloom, "--bf16 --micro-batch-size 2 --clip-grad 1 --zero-stage 0", 0, NULL);
    assert_int_equal(o.global_batch_size, 2048);
    assert_int_equal(o.steps_per_print, 2000);
    assert_int_equal(options_source(&o, offsetof(struct train_opts, global_batch_size)), FROM_DEEPSPEED);
    assert_true(OPTS_GIVEN(&o, global_batch_size));
    assert_int_equal(o.n_remarks, 0);
    with_json(bloom, "", 0, NULL);
    assert_true(o.bf16 && o.micro_batch_size == 2);
    with_json("{\"communication_data_type\": \"fp32\", \"optimizer\": {}, \"zero_optimization\": {\"overlap\": 1}}",
              "", 0, NULL);
    assert_int_equal(o.grad_reduce_dtype, REDUCE_FP32);
    assert_int_equal(o.n_remarks, 2);
    assert_non_null(strstr(o.remark[0], "ds.json: optimizer is unknown and has no effect"));
    assert_non_null(strstr(o.remark[1], "ds.json: zero_optimization.overlap is unknown and has no effect"));
    with_json("{\"train_batch_size\": \"auto\", \"fp16\": {\"enabled\": false, \"hysteresis\": 2}}", "", 0, NULL);

    with_json(bloom, "--micro-batch-size 4", 0,
              "%s: train_micro_batch_size_per_gpu is 2, but --micro-batch-size is 4");
    with_json("{\"gradient_clipping\": 0.5}", "--clip-grad 1", 0,
              "%s: gradient_clipping is 0.5, but --clip-grad is 1.0");
    with_json("{\"bf16\": {\"enabled\": false}}", "--bf16", 0, "%s: bf16.enabled is False, but --bf16 is True");
    with_json("{\"zero_optimization\": {\"stage\": 3}}", "", 0,
              "--zero-stage (%s: zero_optimization.stage): 3 is out of range; the value must be from 0 to 1");
    with_json("{\"train_batch_size\": [1]}", "", 0, "%s: train_batch_size: expected a number");
    with_json("{\"communication_data_type\": \"fp64\"}", "", 0,
              "%s: communication_data_type: expected \"fp32\", \"fp16\" or \"bf16\"");
    with_json("[1]", "", 0, "%s: expected a JSON object");
    with_json("{\n\"bf16\": }", "", 0, "%s: line 2: unexpected token near '}'");
    with_json("{\"curriculum_learning\": {\"enabled\": true}}", "", 0,
              "%s: curriculum_learning: curriculum learning is not supported");
    with_json("{\"gradient_accumulation_steps\": 4}", MODEL RUN "--bf16", 2, NULL);
    assert_int_equal(o.global_batch_size, 8);
    with_json("{\"gradient_accumulation_steps\": 4}", MODEL RUN "--bf16 --global-batch-size 16", 2,
              "%s: gradient_accumulation_steps is 4: with micro-batch size 1 and 2 data-parallel ranks that makes 8 "
              "samples, but --global-batch-size is 16");
    /* With a ramp DeepSpeed gets the number at every step. */
    with_json("{\"gradient_accumulation_steps\": 4}",
              MODEL RUN "--bf16 --global-batch-size 16 --rampup-batch-size 4 4 96", 2, NULL);
}

/* About the loss scale the JSON decides, as in the reference; Megatron's own options are for runs without one. */
static void test_fp16(void **state)
{
    static const char tr1[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"train_batch_size\": 1024, \"gradient_clipping\": 1.0,"
        " \"zero_optimization\": {\"stage\": 1}, \"fp16\": {\"enabled\": true, \"loss_scale\": 0,"
        " \"loss_scale_window\": 500, \"hysteresis\": 2, \"min_loss_scale\": 1, \"initial_scale_power\": 12},"
        " \"steps_per_print\": 2000, \"wall_clock_breakdown\": false}";

    (void)state;
    with_json(tr1, "--fp16 --loss-scale 12 --hysteresis 2", 0, NULL);
    assert_true(o.fp16 && o.loss_scale == 0 && o.initial_loss_scale == 4096 && o.min_loss_scale == 1);
    assert_true(o.loss_scale_window == 500 && o.hysteresis == 2 && !o.consecutive_hysteresis);
    assert_int_equal(o.n_remarks, 1);
    assert_non_null(strstr(o.remark[0], "--loss-scale 12.0 has no effect: "));
    assert_non_null(strstr(o.remark[0], "ds.json decides, fp16.loss_scale is 0.0"));
    with_json(tr1, "", 0, NULL);
    assert_true(o.fp16);
    with_json(
        "{\"fp16\": {\"enabled\": true, \"consecutive_hysteresis\": true, \"fp16_frobs\": 1, \"loss_scale\": 64}}",
        "--min-loss-scale 4 --fp16", 0, NULL);
    assert_true(o.loss_scale == 64 && o.initial_loss_scale == 65536 && o.loss_scale_window == 1000);
    assert_true(o.min_loss_scale == 1 && o.consecutive_hysteresis);
    assert_int_equal(o.n_remarks, 2);
    assert_non_null(strstr(o.remark[1], "fp16.fp16_frobs is unknown"));

    with_json("{\"fp16\": {\"enabled\": false}}", "--fp16", 0, "%s: fp16.enabled is False, but --fp16 is True");
    with_json("{\"train_batch_size\": 16}", "--fp16", 0, "%s: fp16.enabled is not true, but --fp16 is given");
    with_json("{\"fp16\": {\"enabled\": 1}}", "", 0, "%s: fp16.enabled: expected true or false");
    with_json("{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 1.5}}", "", 0,
              "%s: fp16.initial_scale_power: expected a whole number from 0 to 99");
    with_json("{\"fp16\": {\"enabled\": true, \"hysteresis\": 0}}", "", 0,
              "--hysteresis (%s: fp16.hysteresis): 0 is out of range; the value must be from 1 to 1000000000000000");
    with_json("{\"fp16\": {\"enabled\": true, \"loss_scale\": \"x\"}}", "", 0,
              "%s: fp16.loss_scale: expected a number");
    with_json("{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", MODEL RUN, 1,
              "--bf16 (%s: bf16.enabled) and --fp16 (%s: fp16.enabled) exclude each other");

    accept(MODEL RUN "--fp16 --loss-scale-window 20 --initial-loss-scale 1024", NULL, 1);
    assert_true(o.loss_scale == 0 && o.initial_loss_scale == 1024 && o.loss_scale_window == 20);
    assert_int_equal(o.grad_reduce_dtype, REDUCE_FP16);
    assert_false(o.accumulate_allreduce_grads_in_fp32);
    accept(MODEL RUN "--fp16 --accumulate-allreduce-grads-in-fp32", NULL, 1);
    assert_int_equal(o.grad_reduce_dtype, REDUCE_FP32);
    accept(MODEL RUN "--fp16 --accumulate-allreduce-grads-in-fp32 --grad-reduce-dtype fp16", NULL, 1);
    assert_int_equal(o.grad_reduce_dtype, REDUCE_FP16);
    accept(MODEL RUN "--bf16 --loss-scale 12", NULL, 1);
    assert_int_equal(o.n_remarks, 1);
    assert_string_equal(o.remark[0], "accepted, without effect here: --loss-scale");
    assert_true(o.accumulate_allreduce_grads_in_fp32);
    refuse(MODEL RUN "--fp16 --grad-reduce-dtype fp32", NULL, 1, "--grad-reduce-dtype fp32 with --fp16 needs "
           "--accumulate-allreduce-grads-in-fp32: gradients travel as they accumulate");
    refuse(MODEL RUN "--fp16 --grad-reduce-dtype bf16", NULL, 1, "--grad-reduce-dtype bf16 needs --bf16");
    refuse(MODEL RUN "--fp16 --initial-loss-scale 2 --min-loss-scale 4", NULL, 1,
           "--initial-loss-scale 2 is less than --min-loss-scale 4");
}

/* Variables of the environment count as given: a JSON does not override them either. */
static void test_deepspeed_environment(void **state)
{
    char *path = put("ds.json", "{\"gradient_clipping\": 0.5}"), line[600], want[800];
    char *env[] = { (char *)"SHARDKIT_CLIP_GRAD=1", NULL };

    (void)state;
    snprintf(line, sizeof line, "--deepspeed_config %s", path);
    snprintf(want, sizeof want, "%s: gradient_clipping is 0.5, but --clip-grad (SHARDKIT_CLIP_GRAD) is 1.0", path);
    refuse(line, env, 0, want);
    free(path);
}

/* ---- checks ---- */

static void test_derived(void **state)
{
    (void)state;
    accept(MODEL RUN, NULL, 2);
    assert_int_equal(o.data_parallel_size, 2);
    assert_int_equal(o.global_batch_size, 2);
    assert_int_equal(o.ffn_hidden_size, 256);
    assert_int_equal(o.kv_channels, 16);
    assert_string_equal(o.split, "969, 30, 1");
    assert_int_equal(o.grad_reduce_dtype, REDUCE_FP32);
    accept(MODEL RUN "--checkpoint-activations --skip-train-iteration-range 20-30 1-5 25-40 6-6 5-5", NULL, 1);
    assert_int_equal(o.recompute_granularity, RECOMPUTE_FULL);
    assert_int_equal(o.n_skip, 3);
    assert_true(o.skip[0].first == 1 && o.skip[0].last == 5 && o.skip[1].first == 6 && o.skip[2].last == 40);
}

static void test_parallel(void **state)
{
    (void)state;
    refuse(MODEL RUN "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", NULL, 6,
           "6 ranks: no multiple of --tensor-model-parallel-size 2 x --pipeline-model-parallel-size 2");
    refuse(MODEL RUN "--tensor-model-parallel-size 8", NULL, 8,
           "--num-attention-heads 4 is not a multiple of --tensor-model-parallel-size 8");
    refuse(MODEL RUN "--pipeline-model-parallel-size 8", NULL, 8,
           "--num-layers 4 is less than --pipeline-model-parallel-size 8");
    refuse(MODEL RUN "--pp-partition-method type:embedding", NULL, 1, "--pp-partition-method 'type:embedding' is not "
           "supported: expected type:transformer, type:transformer|embedding, parameters, uniform, cost or even");
    refuse(MODEL RUN "--pad-vocab-size-to 500", NULL, 1,
           "--pad-vocab-size-to 500 is not a multiple of --make-vocab-size-divisible-by 128");
    refuse(MODEL RUN "--pad-vocab-size-to 129 --make-vocab-size-divisible-by 1 --tensor-model-parallel-size 2", NULL, 2,
           "--pad-vocab-size-to 129 is not a multiple of --tensor-model-parallel-size 2");
    refuse(MODEL RUN "--pad-vocab-size-to 256", NULL, 1, "--pad-vocab-size-to 256 is less than --vocab-size 257");
    accept(MODEL RUN "--sequence-parallel", NULL, 1);
    assert_true(!o.sequence_parallel && o.n_remarks == 1);
}

static void test_model(void **state)
{
    (void)state;
    refuse(RUN, NULL, 1, "4 options are missing: --num-layers, --hidden-size, --num-attention-heads, --seq-length");
    accept(RUN "--load ckpt", NULL, 1);         /* the checkpoint will say */
    refuse("--num-layers 4 --hidden-size 65 --num-attention-heads 4 --seq-length 8 " RUN, NULL, 1,
           "--hidden-size 65 is not a multiple of --num-attention-heads 4");
    refuse(MODEL RUN "--kv-channels 8", NULL, 1,
           "--kv-channels 8 is not supported: --hidden-size 64 / --num-attention-heads 4 is 16");
    refuse(MODEL RUN "--seq-length 256", NULL, 1, "--max-position-embeddings 128 is less than --seq-length 256");
    refuse(MODEL "--micro-batch-size 1 --train-samples 1200 --lr 2e-3 --data-path /d/text", NULL, 1,
           "the vocabulary is not known: give a tokenizer, --vocab-size or --pad-vocab-size-to");
    refuse(MODEL RUN "--vocab-file v", NULL, 1, "--vocab-file and --merge-file need each other");
    refuse(MODEL RUN "--grad-reduce-dtype bf16", NULL, 1, "--grad-reduce-dtype bf16 needs --bf16");
    refuse(MODEL RUN "--checkpoint-activations --recompute-granularity selective", NULL, 1,
           "--checkpoint-activations means --recompute-granularity full, found selective");
}

static void test_complete(void **state)
{
    struct err e = {0};

    (void)state;
    accept(RUN "--load ckpt --num-layers 4", NULL, 1);
    assert_int_equal(options_check(&o, 1, OPTIONS_COMPLETE, &e), -1);
    assert_string_equal(e.msg, "3 options are missing that the checkpoint does not give: "
                        "--hidden-size, --num-attention-heads, --seq-length");
    err_clear(&e);
    o.hidden_size = 64;
    OPTS_MARK(&o, hidden_size);
    o.num_attention_heads = 4;
    o.seq_length = 128;
    assert_int_equal(options_check(&o, 1, OPTIONS_COMPLETE, &e), 0);
    assert_false(OPTS_GIVEN(&o, hidden_size));
    assert_true(OPTS_GIVEN(&o, num_layers));
    assert_string_equal(OPTS_WHERE(&o, hidden_size), "--hidden-size (checkpoint)");
}

static void test_schedule_rules(void **state)
{
    char *env[] = { (char *)"SHARDKIT_TRAIN_ITERS=5", NULL };

    (void)state;
    refuse(MODEL RUN "--global-batch-size 6 --micro-batch-size 4", NULL, 1,
           "a global batch of 6 samples is not a multiple of micro-batch size 4 x data-parallel size 1");
    refuse(MODEL RUN "--global-batch-size 16 --rampup-batch-size 4 4 96 --micro-batch-size 2", NULL, 4,
           "a global batch of 4 samples is not a multiple of micro-batch size 2 x data-parallel size 4");
    accept(MODEL RUN "--global-batch-size 16 --rampup-batch-size 4 4 96 --micro-batch-size 2 --load x", NULL, 4);
    refuse(MODEL RUN, env, 1, "--train-iters (SHARDKIT_TRAIN_ITERS) and --train-samples exclude each other");
    refuse(MODEL "--micro-batch-size 1 --lr 1 --vocab-size 2 --data-path x", NULL, 1,
           "neither --train-samples nor --train-iters given");
    refuse(MODEL "--micro-batch-size 1 --train-iters 9 --lr 1 --vocab-size 2 --rampup-batch-size 1 1 5", NULL, 1,
           "--train-iters and --rampup-batch-size exclude each other");
    refuse(MODEL RUN "--lr-decay-iters 5", NULL, 1, "--train-samples and --lr-decay-iters exclude each other");
    refuse(MODEL RUN "--lr-warmup-samples 5 --lr-warmup-fraction 0.1", NULL, 1,
           "--lr-warmup-fraction and --lr-warmup-samples exclude each other");
    refuse(MODEL RUN "--lr-warmup-samples 1200", NULL, 1,
           "the learning rate would warm up over 1200 samples and decay over 1200: warm-up must be shorter");
    refuse(MODEL RUN "--min-lr 1", NULL, 1, "--min-lr 1 is greater than --lr 0.002");
    refuse(MODEL RUN "--override-lr-scheduler --use-checkpoint-lr-scheduler", NULL, 1,
           "--override-lr-scheduler and --use-checkpoint-lr-scheduler exclude each other");
    refuse(MODEL "--micro-batch-size 1000000 --train-iters 10000000000 --lr 1 --vocab-size 2 --data-path x", NULL, 1,
           "--train-iters x --global-batch-size samples are too many: no more than 10^15 are supported");
    refuse(MODEL RUN "--save x", NULL, 1, "--save needs --save-interval or --save-schedule");
    accept(MODEL RUN "--save x --save-schedule 1-100:10,101-:50", NULL, 1);
    assert_true(o.saves.n == 2 && o.saves.rest == 0);
    refuse(MODEL RUN "--save-schedule 1-100:10,101-:0", NULL, 1,
           "--save-schedule '1-100:10,101-:0': column 15: expected an interval of 1 or more iterations, found '0'");
    refuse(MODEL RUN "--universal-checkpoint", NULL, 1, "--universal-checkpoint needs --load");
    refuse(MODEL RUN "--skip-train-iteration-range 5-3", NULL, 1,
           "--skip-train-iteration-range: '5-3' is not a range: expected FIRST-LAST, FIRST >= 1");
}

/* Iterations instead of samples, and fractions: what the scheduler is given. */
static void test_schedule_of(void **state)
{
    struct schedule s;
    struct err e = {0};

    (void)state;
    accept(MODEL "--micro-batch-size 2 --train-iters 100 --lr 1e-3 --lr-decay-iters 80 --lr-warmup-iters 8 "
           "--vocab-size 2 --data-path x --global-batch-size 8 --eval-interval 30 --eval-iters 3", NULL, 2);
    assert_int_equal(schedule_init(&s, &o, &e), 0);
    assert_true(s.train_iters == 100 && s.train_samples == 800 && s.lr.decay_steps == 640 && s.lr.warmup_steps == 64);
    assert_int_equal(schedule_valid_samples(&s, &o), (100 / 30 + 1) * 3 * 8);
    assert_int_equal(schedule_test_samples(&s, &o), 24);
    accept(MODEL RUN "--lr-warmup-fraction 0.1 --rampup-batch-size 4 4 96 --global-batch-size 16", NULL, 1);
    assert_int_equal(schedule_init(&s, &o, &e), 0);
    assert_true(s.train_iters == 83 && s.lr.decay_steps == 1200 && s.lr.warmup_steps == 120);
}

#define NODATA "--micro-batch-size 1 --train-samples 1200 --lr 2e-3 --vocab-size 257 "

static void test_data_rules(void **state)
{
    struct data_groups g = {0};
    struct err e = {0};

    (void)state;
    refuse(MODEL NODATA, NULL, 1, "no training data: give --data-path or --train-weighted-split-paths");
    refuse(MODEL RUN "--train-weighted-split-paths t:~1~0:1~/d", NULL, 1,
           "--data-path and --train-weighted-split-paths exclude each other");
    refuse(MODEL NODATA "--split 1 --train-weighted-split-paths t:~1~0:1~/d", NULL, 1,
           "--split and --train-weighted-split-paths exclude each other");
    refuse(MODEL NODATA "--train-weighted-split-paths t:~1~0:1~/d --train-weighted-split-paths-path f", NULL, 1,
           "--train-weighted-split-paths and --train-weighted-split-paths-path exclude each other");
    refuse(MODEL NODATA "--train-weighted-split-paths t:~1~0:1~/d u:~1~0:1~/d", NULL, 1,
           "--train-weighted-split-paths: expected one group, found 2");
    refuse(MODEL RUN "--eod-mask-loss", NULL, 1, "--eod-mask-loss needs --eod-id or a tokenizer");
    accept(MODEL NODATA "--train-weighted-split-paths t:~1~0:0.9~/d/a,~2~0:1~/d/b "
           "--valid-weighted-split-paths en:~1~0.9:1~/d/a fr:~1~0:1~/d/c", NULL, 1);
    assert_int_equal(options_data_groups(&o, SPLIT_VALID, &g, &e), 0);
    assert_int_equal(g.n, 2);
    assert_string_equal(g.group[1].name, "fr");
    assert_int_equal(options_data_groups(&o, SPLIT_TEST, &g, &e), 0);
    assert_int_equal(g.n, 2);
    data_groups_free(&g);
}

/* ---- scripts that exist ---- */

/* The arguments of the 176B run, with its JSON. */
static void test_bloom_script(void **state)
{
    char *train = put("train.txt", "\"train: 0.5 0:0.95 /d/en, 0.5 0:0.95 /d/fr\"\n"), line[4000];
    char *json = put(
        "ds.json", "{\"train_micro_batch_size_per_gpu\": 1, \"train_batch_size\": 2048, "
                   "\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 0}, \"bf16\": {\"enabled\": true}, "
                   "\"steps_per_print\": 2000, \"wall_clock_breakdown\": false}");
    struct schedule s;
    struct err e = {0};

    (void)state;
    snprintf(line, sizeof line,
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 "
        "--pp-partition-method 'type:transformer|embedding' --num-layers 70 --hidden-size 14336 "
        "--num-attention-heads 112 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 "
        "--rampup-batch-size 192 16 9_765_625 --global-batch-size 2048 --train-samples 220_000_000 "
        "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path bigscience/tokenizer --init-method-std 0.0048 "
        "--embed-layernorm --sync-tp-duplicated-parameters --bf16 --seed 42 --position-embedding-type alibi "
        "--checkpoint-activations --abort-on-unmet-fused-kernel-constraints --kill-switch-path /tmp/kill "
        "--pad-vocab-size-to 250880 --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --lr 6e-5 "
        "--min-lr 6e-6 --lr-decay-style cosine --lr-decay-samples 200_000_000 --lr-warmup-samples 183_105 "
        "--clip-grad 1.0 --weight-decay 1e-1 --exit-duration-in-mins 5990 --log-interval 1 --save-interval 100 "
        "--eval-interval 1000 --eval-iters 1 --tensorboard-dir /t/tb --tensorboard-queue-size 5 "
        "--log-timers-to-tensorboard --log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard "
        "--save /t/ckpt --load /t/ckpt --train-weighted-split-paths-path %s --valid-weighted-split-paths-path %s "
        "--num-workers 2 --valid-num-workers 0 --data-impl mmap --distributed-backend nccl --deepspeed "
        "--deepspeed_config %s --zero-stage 0 --deepspeed-activation-checkpointing", train, train, json);
    accept(line, NULL, 384);
    assert_int_equal(o.data_parallel_size, 8);
    assert_int_equal(o.partition_algorithm, PIPELINE_SPREAD);
    assert_int_equal(o.n_remarks, 1);
    assert_string_equal(o.remark[0], "accepted, without effect here: --sync-tp-duplicated-parameters, "
                        "--abort-on-unmet-fused-kernel-constraints, --num-workers, --valid-num-workers, "
                        "--distributed-backend, --deepspeed-activation-checkpointing");
    assert_int_equal(schedule_init(&s, &o, &e), 0);
    assert_int_equal(s.train_iters, 115311);
    assert_int_equal(schedule_valid_samples(&s, &o), 237568);
    free(train);
    free(json);
}

/* ---- showing ---- */

static void test_print(void **state)
{
    char *env[] = { (char *)"SHARDKIT_LR=0.002", NULL };
    struct strbuf sb = {0};

    (void)state;
    accept(MODEL "--micro-batch-size 1 --train-samples 1200 --vocab-size 257 --data-path /d/text --bf16 "
           "--rampup-batch-size 4 4 96 --global-batch-size 16 --umask 002", env, 4);
    options_print(&o, false, &sb);
    assert_memory_equal(sb.buf, "------------------------ arguments ------------------------\n", 60);
    assert_non_null(strstr(sb.buf, "\n  adam_eps ........................................ 1e-08\n"));
    assert_non_null(strstr(sb.buf, "\n  bf16 ............................................ True\n"));
    assert_non_null(strstr(sb.buf, "\n  data_parallel_size .............................. 4\n"));
    assert_non_null(strstr(sb.buf, "\n  data_path ....................................... ['/d/text']\n"));
    assert_non_null(strstr(sb.buf, "\n  exit_interval ................................... None\n"));
    assert_non_null(strstr(sb.buf, "\n  lr .............................................. 0.002\n"));
    assert_non_null(strstr(sb.buf, "\n  lr_warmup_fraction .............................. None\n"));
    assert_non_null(strstr(sb.buf, "\n  lr_warmup_samples ............................... 0\n"));
    assert_non_null(strstr(sb.buf, "\n  rampup_batch_size ............................... ['4', '4', '96']\n"));
    assert_non_null(strstr(sb.buf, "\n  position_embedding_type ......................... absolute\n"));
    assert_non_null(strstr(sb.buf, "\n  umask ........................................... 0o2\n"));
    assert_true(str_ends(sb.buf, "-------------------- end of arguments ---------------------\n"));
    sb.len = 0;
    options_print(&o, true, &sb);
    assert_non_null(strstr(sb.buf, "\n  lr .............................................. 0.002  (environment)\n"));
    strbuf_free(&sb);
}

int main(void)
{
#define T(f) cmocka_unit_test_teardown(f, forget)
    const struct CMUnitTest tests[] = {
        T(test_defaults),    T(test_spellings),  T(test_short_names),
        T(test_refused),     T(test_help_wins),  T(test_environment),
        T(test_file),        T(test_deepspeed),  T(test_deepspeed_environment),
        T(test_fp16),        T(test_derived),    T(test_parallel),
        T(test_model),       T(test_complete),   T(test_schedule_rules),
        T(test_schedule_of), T(test_data_rules), T(test_bloom_script),
        T(test_print),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
