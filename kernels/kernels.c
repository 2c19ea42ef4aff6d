/*
 * kernels.c - code that does not depend on the device
 */
#include "kernels/kernels.h"

void kernels_close(const struct kernels *k)
{
    if (k)
        k->close(k);
}
