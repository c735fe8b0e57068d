/*
 * ckpt.h - converting optimizers' files: `spillway ckpt convert`.
 */
#ifndef SPW_CLI_CKPT_H
#define SPW_CLI_CKPT_H

/* How a file names a parameter's state. */
typedef enum spw__layout {
    SPW__LAYOUT_SPILLWAY,
    SPW__LAYOUT_BITSANDBYTES,
    SPW__LAYOUT_TORCH
} spw__layout;

/* The words of --to, in the enum's order, and NULL. */
extern const char *const spw__layout_words[];

/* Reads an optimizer's file of any layout and writes it in another; the message names file and
 * tensor. */
int spw__ckpt_convert(const char *from, const char *to, spw__layout layout);

#endif
