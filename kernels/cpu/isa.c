/*
 * isa.c - collect the functions of one instruction set
 */
#include "kernels/cpu/cpu.h"

void ISA_NAME(cpu_fill)(struct kernels *k)
{
    linear_fill(k);
    norm_fill(k);
    attention_fill(k);
    attention_back_fill(k);
    embed_fill(k);
    xent_fill(k);
    flat_fill(k);
}
