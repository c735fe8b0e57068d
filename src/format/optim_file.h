/*
 * optim_file.h - what an optimizer's file calls its things: ckpt writes and reads such files, the
 * command shows and converts them. docs/checkpoints.md has the whole format.
 */
#ifndef SPW_FORMAT_OPTIM_FILE_H
#define SPW_FORMAT_OPTIM_FILE_H

/* Keys of the metadata and their values; a prefix is followed by a parameter's name. */
#define SPW__OPTIM_FORMAT "spillway.optimizer"
#define SPW__OPTIM_VERSION "1"
#define SPW__OPTIM_CODES "bitsandbytes"
#define SPW__OPTIM_BLOCK "256"
#define SPW__OPTIM_STEP "step."

#endif
