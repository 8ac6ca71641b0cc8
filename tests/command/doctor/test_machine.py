"""What the doctor finds of GPUs without torch."""

from __future__ import annotations

from ibp_gnn.command.doctor import machine


def test_what_nvidia_smi_prints():
    text = "NVIDIA H200, 580.65.06, 5, 5, 16, 16\nTesla T4, 470.1, [N/A], 3, [N/A], 16\n\nnonsense\n"
    assert machine.parse_smi(text) == (
        machine.Gpu("NVIDIA H200", "580.65.06", (5, 5), (16, 16)),
        machine.Gpu("Tesla T4", "470.1", (None, 3), (None, 16)),
    )


def test_gpus_in_sysfs(tmp_path):
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")

    assert machine.read_sysfs(tmp_path) == ()
    gpu = "bus/pci/devices/0000:01:00.0"
    write(f"{gpu}/vendor", "0x10de")
    write(f"{gpu}/class", "0x030200")
    write(f"{gpu}/current_link_speed", "2.5 GT/s PCIe")
    write(f"{gpu}/max_link_speed", "32.0 GT/s PCIe")
    write(f"{gpu}/current_link_width", "0")
    write(f"{gpu}/max_link_width", "16")
    write("bus/pci/devices/0000:01:00.1/vendor", "0x10de")
    write("bus/pci/devices/0000:01:00.1/class", "0x040300")  # its sound
    write("bus/pci/devices/0000:02:00.0/vendor", "0x8086")
    write("bus/pci/devices/0000:02:00.0/class", "0x030000")
    assert machine.read_sysfs(tmp_path) == (machine.Gpu("NVIDIA GPU at 0000:01:00.0", None, (1, 5), (None, 16)),)
    write("module/nvidia/version", "580.65.06")
    assert machine.read_sysfs(tmp_path)[0].driver == "580.65.06"
