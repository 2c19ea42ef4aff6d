/*
 * cause.c - names of the causes
 */
#include "tools/train/log/cause.h"

const char *cause_name(int status)
{
    switch ((enum cause)status) {
    case CAUSE_HANG: return "hang";
    case CAUSE_LOST: return "lost";
    case CAUSE_CRASH: return "crash";
    case CAUSE_NAN: return "nan";
    case CAUSE_SAVE: return "save";
    case CAUSE_REPLICAS: return "replicas";
    case CAUSE_DEVICE: return "device";
    case CAUSE_FAILED: break;
    }
    return "failed";
}
