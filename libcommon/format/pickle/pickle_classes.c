/* pickle_classes.c - the allow-list of classes, and functions that look up names in it */
#include "libcommon/format/pickle/pickle_classes.h"

#include <string.h>

struct pickle_known {
    const char *module, *name;
    unsigned uses;
};

/*
 * The known classes; see docs/formats.md, section 3.3. The list is sorted by use and not by name, because it is short
 * and is read by people.
 */
static const struct pickle_known known[] = {
    {"torch._utils", "_rebuild_tensor", USE_CALL},
    {"torch._utils", "_rebuild_tensor_v2", USE_CALL | USE_VALUE},
    {"torch._utils", "_rebuild_tensor_v3", USE_CALL | USE_VALUE},
    {"torch._utils", "_rebuild_parameter", USE_CALL},
    {"torch._utils", "_rebuild_parameter_with_state", USE_CALL},
    {"torch._tensor", "_rebuild_from_type_v2", USE_CALL},
    {"torch", "Tensor", USE_VALUE},
    {"torch", "Size", USE_CALL | USE_VALUE},
    {"torch", "device", USE_CALL | USE_VALUE},
    {"torch.storage", "UntypedStorage", USE_VALUE},
    {"collections", "OrderedDict", USE_CALL | USE_VALUE},
    {"collections", "deque", USE_CALL | USE_VALUE},
    {"collections", "Counter", USE_CALL | USE_VALUE},
    {"_codecs", "encode", USE_CALL},
    {"numpy.core.multiarray", "_reconstruct", USE_CALL},
    {"numpy._core.multiarray", "_reconstruct", USE_CALL},
    {"numpy.core.multiarray", "scalar", USE_CALL},
    {"numpy._core.multiarray", "scalar", USE_CALL},
    {"numpy.core.numeric", "_frombuffer", USE_CALL},
    {"numpy._core.numeric", "_frombuffer", USE_CALL},
    {"numpy", "ndarray", USE_VALUE},
    {"numpy", "dtype", USE_CALL | USE_VALUE},
    {"argparse", "Namespace", USE_OBJ},
    {"deepspeed.runtime.bf16_optimizer", "fragment_address", USE_OBJ},
    {"deepspeed.utils.tensor_fragment", "fragment_address", USE_OBJ},
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler", USE_OBJ},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", USE_OBJ},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum", USE_ENUM},
    {"deepspeed.checkpoint.universal_checkpoint", "SubparamShape", USE_OBJ},
    {"megatron.enums", "PositionEmbeddingType", USE_ENUM},
    {"megatron.core.enums", "ModelType", USE_ENUM},
    {"megatron.core.transformer.enums", "AttnBackend", USE_ENUM},
    {"megatron.core.transformer.enums", "AttnMaskType", USE_ENUM},
    {"megatron.core.transformer.enums", "AttnType", USE_ENUM},
    {"megatron.core.transformer.enums", "LayerType", USE_ENUM},
    {"megatron.core.transformer.enums", "ModelType", USE_ENUM},
    {"megatron.core.transformer.enums", "CudaGraphScope", USE_ENUM},
    {"torch.distributed.checkpoint.metadata", "Metadata", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "TensorProperties", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", USE_ENUM},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex", USE_OBJ},
    {"torch.distributed.checkpoint.metadata", "StorageMeta", USE_OBJ},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", USE_OBJ},
    {"torch.distributed.checkpoint.planner", "SavePlan", USE_OBJ},
    {"torch.distributed.checkpoint.planner", "WriteItem", USE_OBJ},
    {"torch.distributed.checkpoint.planner", "WriteItemType", USE_ENUM},
    {"torch.distributed.checkpoint.planner", "TensorWriteData", USE_OBJ},
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", USE_OBJ},
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan", USE_OBJ},
    {"torch.serialization", "_get_layout", USE_CALL},
    {"torch._utils", "_rebuild_wrapper_subclass", USE_VALUE},
    {"torch.distributed.tensor", "DTensor", USE_VALUE},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec", USE_OBJ},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta", USE_OBJ | USE_NAMED},
    {"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry", USE_OBJ | USE_NAMED},
    {"torch.distributed.tensor.placement_types", "Shard", USE_OBJ},
    {"torch.distributed.tensor.placement_types", "Replicate", USE_OBJ},
    {"torch.distributed.tensor.placement_types", "_StridedShard", USE_OBJ},
    {"torch.distributed.device_mesh", "DeviceMesh", USE_OBJ},
    {"torch.distributed._mesh_layout", "_MeshLayout", USE_OBJ},
    {"torch.distributed._mesh_layout", "_FlatLayout", USE_OBJ},
    {"pathlib", "PosixPath", USE_CALL},
};

/*
 * Storage classes, by dtype; the full name is "torch." + name. NULL: torch stores tensors of this dtype in an
 * UntypedStorage.
 */
static const char *const storages[DTYPE_N] = {
    [DTYPE_F64] = "DoubleStorage", [DTYPE_F32] = "FloatStorage", [DTYPE_F16] = "HalfStorage",
    [DTYPE_BF16] = "BFloat16Storage", [DTYPE_I64] = "LongStorage", [DTYPE_I32] = "IntStorage",
    [DTYPE_I16] = "ShortStorage", [DTYPE_I8] = "CharStorage", [DTYPE_U8] = "ByteStorage",
    [DTYPE_BOOL] = "BoolStorage", [DTYPE_C64] = "ComplexFloatStorage", [DTYPE_C128] = "ComplexDoubleStorage",
    [DTYPE_QI8] = "QInt8Storage", [DTYPE_QU8] = "QUInt8Storage", [DTYPE_QI32] = "QInt32Storage",
    [DTYPE_QU4X2] = "QUInt4x2Storage", [DTYPE_QU2X4] = "QUInt2x4Storage",
};

static const char *const builtins[] = {
    "set", "frozenset", "bytes", "bytearray", "complex", "xrange", "range",
};

bool pk_is_class(const struct pk *v, const char *module, const char *name)
{
    if (v && (v->type == PK_CALL || v->type == PK_OBJ))
        v = v->fn;
    return v && v->type == PK_GLOBAL && strcmp(v->name, name) == 0 && strcmp(v->module, module) == 0;
}

bool pickle_is_builtin(const struct pk *g, const char *name)
{
    return g && g->type == PK_GLOBAL && strcmp(g->name, name) == 0 &&
           (strcmp(g->module, "__builtin__") == 0 || strcmp(g->module, "builtins") == 0);
}

bool pickle_storage_dtype(const struct pk *g, enum dtype *dtype, bool *raw)
{
    if (!g || g->type != PK_GLOBAL)
        return false;
    *raw = pk_is_class(g, "torch.storage", "UntypedStorage");
    *dtype = DTYPE_U8;
    if (*raw)
        return true;
    for (int t = 0; t < DTYPE_N; t++)
        if (storages[t] && strcmp(g->name, storages[t]) == 0 && strcmp(g->module, "torch") == 0) {
            *dtype = (enum dtype)t;
            return true;
        }
    return false;
}

const char *pickle_storage_class(enum dtype dtype)
{
    return storages[dtype];
}

bool pickle_dtype(const struct pk *g, enum dtype *dtype)
{
    for (int t = 0; g && g->type == PK_GLOBAL && t < DTYPE_N; t++)
        if (strcmp(g->name, dtype_torch_name((enum dtype)t)) == 0 && strcmp(g->module, "torch") == 0) {
            *dtype = (enum dtype)t;
            return true;
        }
    return false;
}

unsigned pickle_uses(const struct pk *g)
{
    if (!g || g->type != PK_GLOBAL)
        return 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(g->name, known[i].name) == 0 && strcmp(g->module, known[i].module) == 0)
            return known[i].uses;
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (pickle_is_builtin(g, builtins[i]))
            return USE_CALL | USE_VALUE;
    return pickle_storage_dtype(g, &(enum dtype){0}, &(bool){0}) || pickle_dtype(g, &(enum dtype){0}) ? USE_VALUE : 0;
}

const struct pk *pickle_getattr_class(const struct pk *v)
{
    const struct pk *cls;

    if (!v || v->type != PK_CALL || !pickle_is_builtin(v->fn, "getattr") || v->args->n != 2)
        return NULL;
    cls = v->args->item[0];
    return cls->type == PK_GLOBAL && v->args->item[1]->type == PK_STR ? cls : NULL;
}

/*
 * Returns true if the call of a listed class is permitted. A call with arguments that are unusual for the class is not
 * permitted, because its meaning is unknown.
 */
static bool known_call(const struct pk *v)
{
    unsigned uses = pickle_uses(v->fn);
    uint32_t n = v->args->n;

    if (pickle_getattr_class(v))
        return pickle_uses(pickle_getattr_class(v)) & USE_ENUM;
    if (uses & USE_ENUM)
        return n == 1 && v->args->item[0]->type == PK_INT && !v->fill && !v->state;
    if (!(uses & USE_CALL))
        return false;
    if (pk_is_class(v->fn, "_codecs", "encode"))
        return n == 2 && v->args->item[0]->type == PK_STR && v->args->item[1]->type == PK_STR &&
               strcmp(v->args->item[1]->str, "latin1") == 0;
    if (pk_is_class(v->fn, "collections", "OrderedDict"))
        return n == 0 && (!v->fill || v->fill->type == PK_DICT);
    return true;
}

bool pickle_is_opaque(const struct pk *v)
{
    switch (v->type) {
    case PK_GLOBAL: return !(pickle_uses(v) & (USE_VALUE | USE_ENUM));
    case PK_CALL:   return !known_call(v);
    case PK_OBJ:    return !(pickle_uses(v->fn) & USE_OBJ) || (v->args->n != 0 && !(pickle_uses(v->fn) & USE_NAMED));
    default:        return false;
    }
}
