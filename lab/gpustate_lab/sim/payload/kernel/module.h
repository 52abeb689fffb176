/* Simulated linux/module.h: puts the strings of a module where depmod and modinfo look for them. */
#ifndef GPUSTATE_LAB_MODULE_H
#define GPUSTATE_LAB_MODULE_H
#include <generated/utsrelease.h>
#define LAB_JOIN_(a, b) a##b
#define LAB_JOIN(a, b) LAB_JOIN_(a, b)
#define LAB_INFO(text) \
    static const char LAB_JOIN(lab_info_, __COUNTER__)[] __attribute__((used, section(".modinfo"), aligned(1))) = text
#define MODULE_INFO(tag, info) LAB_INFO(#tag "=" info)
#define MODULE_NAME(name) LAB_INFO("name=" name); LAB_INFO("vermagic=" UTS_RELEASE " SMP preempt mod_unload modversions ")
#define MODULE_LICENSE(license) LAB_INFO("license=" license)
#define MODULE_VERSION(version) LAB_INFO("version=" version)
#define MODULE_ALIAS(alias) LAB_INFO("alias=" alias)
#define MODULE_DEPENDS(depends) LAB_INFO("depends=" depends)
#define MODULE_FIRMWARE(firmware) LAB_INFO("firmware=" firmware)
#define MODULE_PARM(name, type) LAB_INFO("parmtype=" name ":" type)
/* depmod finds what a module exports in this section. */
#define EXPORT_SYMBOL(symbol) \
    static const char LAB_JOIN(lab_export_, symbol)[] __attribute__((used, section("__ksymtab_strings"), aligned(1))) = #symbol
#endif
