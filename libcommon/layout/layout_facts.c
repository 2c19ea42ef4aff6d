/*
 * layout_facts.c - the properties of each layout
 */
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/layouts.h"

const struct layout deepspeed_layout = {
    .name = "deepspeed", .pipeline_files = true, .mp_rank_files = true, .opens_with_holes = true,
    .tag_prefix = "global_step", .manifest_writer = "reshape IN OUT",
};

const struct layout zero_layout = {
    .name = "zero", .any_model = true, .zero_files = true, .mp_rank_files = true, .masters_left_out = true,
    .opens_with_holes = true, .tag_prefix = "global_step", .manifest_writer = "reshape IN OUT",
};

const struct layout universal_pt_layout = {
    .name = "universal-pt", .mp_rank_files = true, .state_files = true, .shapes_in_files = true,
    .opens_with_holes = true, .tag_prefix = "global_step", .manifest_writer = "reshape IN OUT",
};

const struct layout universal_hdf5_layout = {
    .name = "universal-hdf5", .mp_rank_files = true, .state_files = true, .datasets = true,
    .tag_prefix = "global_step", .manifest_writer = "ds2universal --format hdf5 IN OUT",
};

const struct layout universal_virtual_layout = {
    .name = "universal-virtual", .mp_rank_files = true, .points_only = true,
    .tag_prefix = "global_step", .manifest_writer = "reshape IN OUT",
};

const struct layout hf_layout = {
    .name = "hf", .model_folder = true, .bin_is_torch = true, .tag_prefix = "global_step",
    .manifest_writer = "export-hf IN OUT",
};

const struct layout hfstorage_layout = {
    .name = "hfstorage", .model_folder = true, .cut_files = true, .manifest_writer = "export-hf --ranks N IN OUT",
};

const struct layout dcp_layout = {
    .name = "dcp", .any_model = true, .entries = true, .value_entries = true, .opens_with_holes = true,
    .integers_unlisted = true, .manifest_writer = "reshape --ranks N IN OUT",
};

const struct layout torchdist_layout = {
    .name = "torchdist", .any_model = true, .core_names = true,
    .entries = true, .masters_left_out = true, .opens_with_holes = true,
    .integers_unlisted = true, .tag_prefix = "iter_", .tag_digits = 7,
    .manifest_writer = "reshape --ranks N IN OUT",
};

const struct layout fsdp_layout = {
    .name = "fsdp", .any_model = true, .parts_once = true, .config_dir = "huggingface/",
    .manifest_writer = "reshape --to dcp --ranks N IN OUT",
};

const struct layout megatron_layout = {
    .name = "megatron", .any_model = true, .core_names = true, .parts_once = true,
    .tag_prefix = "iter_", .tag_digits = 7,
    .manifest_writer = "reshape --to torchdist --ranks N IN OUT",
};

const struct layout meta_layout = {
    .name = "meta", .any_model = true, .weights_alone = true, .parts_once = true,
    .manifest_writer = "export-hf IN OUT",
};

const struct layout litgpt_layout = {
    .name = "litgpt", .any_model = true, .weights_alone = true, .parts_once = true,
    .manifest_writer = "export-hf IN OUT",
};

const struct layout lightning_layout = {
    .name = "lightning", .any_model = true, .parts_once = true, .one_file = true,
    .manifest_writer = "reshape --to dcp --ranks N IN OUT",
};

const struct layout dsmoe_layout = {
    .name = "dsmoe", .any_model = true, .parts_once = true, .masters_left_out = true, .tag_prefix = "global_step",
    .manifest_writer = "reshape --to dcp --ranks N IN OUT",
};

const struct layout single_file_layout = { .name = "pt" };
