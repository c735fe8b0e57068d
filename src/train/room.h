/*
 * room.h - what a run needs of a device before the first activation, from shapes and file headers
 * alone.
 */
#ifndef SPW_TRAIN_ROOM_H
#define SPW_TRAIN_ROOM_H

#include "train/run.h"

/* State of a tensor of n elements. */
uint64_t spw__room_state_bytes(const spw_optim_config *optim, uint64_t n);

/* SPW_ENOMEM, naming what is needed, when weights, gradients and the ring (with paging off: the
 * state) do not fit the device. The run's config and device are there, no weights yet. */
int spw__room_check(const spw__run *run);

#endif
