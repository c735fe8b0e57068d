/* The kernels of every GPU, as data: SPW_FATBIN is the file that nvcc made of kernels.cu. */
    .section .rodata
    .balign 16
    .globl spw__kernels_fatbin
    .hidden spw__kernels_fatbin
    .type spw__kernels_fatbin, %object
spw__kernels_fatbin:
    .incbin SPW_FATBIN
    .size spw__kernels_fatbin, . - spw__kernels_fatbin
    .section .note.GNU-stack, "", %progbits
