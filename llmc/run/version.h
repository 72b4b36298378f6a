/*
The version of the program, and the day it was released. CHANGELOG.md and CITATION.cff name the same version and day,
which dev/test/test_package.sh checks. The Debian package reads the version from here.
defines: TRAIN_GPT2_VERSION, TRAIN_GPT2_DATE, CPU_LEVEL
*/
#pragma once
#define TRAIN_GPT2_VERSION "1.0.0"
#define TRAIN_GPT2_DATE "2026-11-23"

// in a program for many CPUs: a comma and the CPU level of this copy, such as ", x86-64-v3"; otherwise ""
#ifndef CPU_LEVEL
#define CPU_LEVEL ""
#endif
