/*
 * mask.h - which random bits a linear layer's dropout takes.
 *
 * Keyed by (seed, step, micro-batch, place, element), place being a number for (layer, linear):
 * never by thread or by time, so that a block computed again drops the same elements.
 */
#ifndef SPW_TRAIN_MASK_H
#define SPW_TRAIN_MASK_H

#include "train/loops.h"
#include "train/model.h"

/* `dropout` is the probability of an element to be dropped, 0..1. */
spw__mask spw__mask_of(const spw__noise *noise, uint32_t place, float dropout);

#endif
